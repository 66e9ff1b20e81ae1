"""Metrics, alarms, logs and dashboard of an endpoint."""
