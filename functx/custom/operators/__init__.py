"""Custom operators: functions that a program takes as one operation, with rules that users give."""
