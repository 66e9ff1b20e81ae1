"""The four functions that SageMaker's inference toolkits load from `code/inference.py` of `model.tar.gz`."""

from s1_mini.sagemaker.handler import input_fn, model_fn, output_fn, predict_fn

__all__ = ["input_fn", "model_fn", "output_fn", "predict_fn"]
