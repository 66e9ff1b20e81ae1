"""What is seen of an endpoint: log metrics, alarms, one topic, one dashboard."""
