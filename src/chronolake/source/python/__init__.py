"""Sources in Python: functions, generators and classes of a project that yield records."""
