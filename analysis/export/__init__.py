"""A results folder in other tools' formats, one file a format. docs/export.md says what each holds."""
