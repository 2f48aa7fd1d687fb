"""As much of an ELF file as it takes to find a symbol or a section by name (64 bit, little-endian)."""

import mmap
import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

EM_X86_64, EM_AARCH64 = 62, 183
_ET_EXEC = 2
_PT_LOAD = 1
_SHT_SYMTAB, _SHT_DYNSYM = 2, 11
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")


class NotElfError(ValueError):
    """The file is no 64-bit little-endian ELF file."""


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    kind: int
    address: int
    offset: int
    size: int
    link: int


class ElfFile:
    """An ELF image, read through a descriptor that it takes over."""

    def __init__(self, fd: int) -> None:
        try:
            self._data = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
        except (ValueError, OSError) as error:
            raise NotElfError(str(error)) from error
        finally:
            os.close(fd)
        try:
            head = self._header()
            self.machine: int = head[2]
            self._fixed = head[1] == _ET_EXEC
            self._segments = [_SEGMENT.unpack_from(self._data, head[5] + n * head[9]) for n in range(head[10])]
            self._sections = list(self._read_sections(head[6], head[11], head[12], head[13]))
        except struct.error as error:
            self.close()
            raise NotElfError("a cut-off ELF file") from error
        except NotElfError:
            self.close()
            raise

    def _header(self) -> tuple[Any, ...]:
        head = _HEADER.unpack_from(self._data)
        if head[0][:6] != b"\x7fELF\x02\x01":
            raise NotElfError("no 64-bit little-endian ELF file")
        return head

    def _read_sections(self, table: int, size: int, count: int, names: int) -> Iterator[_Section]:
        raw = [_SECTION.unpack_from(self._data, table + n * size) for n in range(count)]
        if not raw:
            return
        strings = raw[names][4]
        for name, kind, _, address, offset, length, link, *_ in raw:
            yield _Section(self._string(strings + name), kind, address, offset, length, link)

    def _string(self, at: int) -> str:
        end = self._data.find(b"\0", at)
        return self._data[at:end].decode("ascii", "replace")

    @property
    def first_page(self) -> int | None:
        """The address of the first page in the file, to be taken off where it is mapped; None: addresses are fixed."""
        if self._fixed:
            return None
        return min((segment[3] for segment in self._segments if segment[0] == _PT_LOAD), default=0) & -mmap.PAGESIZE

    def symbols(self, wanted: Iterable[str]) -> dict[str, int]:
        """Look names up in the dynamic symbols, then in the others; the defined ones are found."""
        found: dict[str, int] = {}
        left = {name.encode() + b"\0" for name in wanted}
        for kind in (_SHT_DYNSYM, _SHT_SYMTAB):
            for section in self._sections:
                if section.kind == kind and left:
                    self._look_up(section, left, found)
        return found

    def _look_up(self, section: _Section, left: set[bytes], found: dict[str, int]) -> None:
        strings = self._sections[section.link]
        names = self._data[strings.offset : strings.offset + strings.size]
        places = {}
        for name in left:  # a linker may let a name be the tail of another: every place will do
            at = names.find(name)
            while at >= 0:
                places[at] = name
                at = names.find(name, at + 1)
        if not places:
            return
        body = self._data[section.offset : section.offset + section.size]
        for name_at, _, _, index, value, _ in _SYMBOL.iter_unpack(body[: len(body) // _SYMBOL.size * _SYMBOL.size]):
            name_bytes = places.get(name_at)
            if name_bytes is not None and index != 0:
                left.discard(name_bytes)
                found[name_bytes[:-1].decode()] = value

    def section(self, name: str) -> int | None:
        """Return a section's address."""
        return next((section.address for section in self._sections if section.name == name), None)

    def find(self, needle: bytes, limit: int) -> bytes | None:
        """Return up to `limit` bytes of the file from the first occurrence of `needle`."""
        at = self._data.find(needle)
        return None if at < 0 else bytes(self._data[at : at + limit])

    def close(self) -> None:
        self._data.close()
