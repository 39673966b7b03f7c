"""Reports: finished run records (or anybody's table) to Markdown, figures and `results.json`. No
torch.
"""
