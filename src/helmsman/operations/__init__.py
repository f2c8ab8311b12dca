"""What users can ask for, declared once. Front ends derive their tools, commands and pages from `table`."""
