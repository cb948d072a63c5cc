"""``python -m lab.mirror.go [SET ...]``: build the sets named, or all of them."""

import sys

from lab.mirror import go

if __name__ == "__main__":
    for set_name in sys.argv[1:] or go.SETS:
        for path in go.build(set_name).values():
            print(path)
