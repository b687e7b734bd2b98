"""The report: one self-contained HTML file about one or several runs or releases."""
