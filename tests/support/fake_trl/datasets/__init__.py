"""A dataset is the list of its rows."""


class Dataset:
    @staticmethod
    def from_list(rows: list[dict[str, object]]) -> list[dict[str, object]]:
        return rows
