"""The TPU compiler on a machine without a TPU; see `tools/tpu_report.py`."""
