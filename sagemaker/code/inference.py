"""What SageMaker's inference toolkits load from `model.tar.gz` as `code/inference.py`: the four functions, no more."""

from s1_mini.sagemaker.handler import input_fn, model_fn, output_fn, predict_fn

__all__ = ["input_fn", "model_fn", "output_fn", "predict_fn"]
