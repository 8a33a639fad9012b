"""x"""
def run(options): pass
