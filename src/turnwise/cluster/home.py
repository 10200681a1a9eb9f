"""Where a driver finds Python and files of the user's, for processes on other nodes that share them."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """`Home(folder="/home/me/project", path=(...))`."""

    folder: str
    path: tuple[str, ...]

    @classmethod
    def here(cls) -> "Home":
        return cls(folder=str(Path.cwd()), path=tuple(os.path.abspath(one) for one in sys.path))

    def enter(self) -> None:
        """Finds them in the same places, as far as this machine has them."""
        if Path(self.folder).is_dir():
            os.chdir(self.folder)
        sys.path += [one for one in self.path if one not in sys.path]
