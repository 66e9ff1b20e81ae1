"""Hourly prices of SageMaker endpoints.

On demand, real-time inference, in us-east-1. Collected in November 2026 from public tools that copy AWS's price list,
not from AWS itself. Types whose price was not found are left out.
"""

from __future__ import annotations

PRICES_OF = "2026-11"
PRICE_REGION = "us-east-1"
HOURS_PER_MONTH = 730

HOURLY_USD = {
    "ml.c5.xlarge": 0.204,
    "ml.m5.xlarge": 0.23,
    "ml.g4dn.xlarge": 0.736,
    "ml.g4dn.2xlarge": 0.94,
    "ml.g4dn.12xlarge": 4.89,
    "ml.g5.xlarge": 1.408,
    "ml.g5.2xlarge": 1.515,
    "ml.g5.12xlarge": 7.09,
    "ml.g5.24xlarge": 10.18,
    "ml.g5.48xlarge": 20.36,
    "ml.g6.xlarge": 1.127,
    "ml.g6.2xlarge": 1.222,
    "ml.g6.12xlarge": 5.752,
    "ml.g6.24xlarge": 8.344,
    "ml.g6.48xlarge": 16.688,
    "ml.g6e.xlarge": 2.61,
    "ml.g6e.2xlarge": 2.80,
    "ml.g6e.12xlarge": 13.12,
    "ml.g6e.24xlarge": 18.83,
    "ml.g6e.48xlarge": 37.66,
    "ml.p4d.24xlarge": 25.25,
    "ml.p5.48xlarge": 63.30,
}
