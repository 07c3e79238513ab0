"""Checks a compiled design: which system tasks it calls, and which VPI modules it loads into the simulator.

However the source spells a call of a system task, Icarus writes it with file and line into the compiled `.vvp`. The
simulator has no task that starts a process, and `wall.c` decides, as a task opens a file, whether it may. So this
module only reports attempts, and reasons for refusing a simulation, before anything runs.
"""

from __future__ import annotations

import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:  # not needed before every simulation
    from collections.abc import Sequence

TOOLS = "/opt/rtl-agent-gym/real"
"""The image's folder of the simulators' real programs, each under its own name."""
EDITABLE: tuple[str, ...] = ("/code/rtl", "/code/verif", "/code/docs")
"""Folders of the submitted files."""
READABLE: tuple[str, ...] = (*EDITABLE, "/code/rundir")
"""Folders whose files a design may include."""
WORK = ("/code", "/rundir")
"""Folders whose files a design may read while it runs, in addition to its working folder; `SECRET` takes precedence."""
SECRET: tuple[str, ...] = ("/src", "/code/src", "/proc", "/sys", "/etc", "/opt", "/venv")
"""Folders of the grader and the machine: a design that opens a file there attacks the grader."""
LOADED = (".xml", ".py", ".pyc", ".pth", ".so", ".vpi", ".vpl", ".vvp", ".ini", ".cfg", ".toml", ".env", ".json")
"""Endings of files that the grader reads or loads: a design that would write such a file attacks the grader."""
COCOTB_DUMP = "cocotb_iverilog_dump.v"
"""The source that cocotb adds if the harness requests waveforms."""
_SEPARATORS = {":", "|"}
"""Separators in the policy for `wall.c`, which no name in it may contain."""
LONGEST_NAME = 200
"""Bytes of a file name that every file system accepts."""
LIBRARIES = ("/usr", "/opt", "/venv", "/src")
"""Folders from which the simulator may load VPI modules: the image's and the harness's."""


def wall(named: Sequence[str] = (), bench: bool = False) -> str:
    """The policy for `wall.c`, which checks each file as it is opened. A design may read `named` files, which the
    harness names in its parameters, in any folder. With `bench`, only a hidden testbench reads files.
    """
    if bench:
        return f"|{':'.join((*WORK, *SECRET))}|{':'.join(LOADED)}"
    named = [name for name in map(os.path.realpath, named) if os.path.isfile(name) and not _SEPARATORS & set(name)]
    secret = [entry for folder in SECRET for entry in _others(folder, named)]
    return f"{':'.join(secret)}|{':'.join((*WORK, *named))}|{':'.join(LOADED)}"


def _others(folder: str, named: Sequence[str]) -> list[str]:
    """A folder's entries other than named files; the folder itself if it has no named file or cannot be split up."""
    inside = [name for name in named if name.startswith(f"{folder}/")]
    entries = sorted(entry.path for entry in os.scandir(folder)) if inside else []
    if not inside or any(_SEPARATORS & set(path) for path in entries):
        return [folder]
    return [other for path in entries if path not in inside for other in _others(path, inside)]


times: frozenset[int] | None = None
"""When the submitted files were last changed (`Greeting`). Other changes are the harness's. None: there are none."""


def open_checkout() -> None:
    """Treat the whole work folder as the problem's, for heavy rows. Call this before importing other modules."""
    global EDITABLE, READABLE, SECRET
    EDITABLE = READABLE = ("/code",)
    SECRET = tuple(folder for folder in SECRET if folder != "/code/src")


CALL = re.compile(
    rb'(?:%vpi_(?:call|func)[/a-z]*|\.sfunc(?:/e)?)[ \t]+(?P<file>\d+)[ \t]+(?P<line>\d+)[ \t]+"(?P<name>\$[^"\\]+)"'
    rb'(?:, "(?P<literal>[^"\\]*)" \{)?'
)
"""A call. No string of a design looks like one, since quotation marks in strings are escaped."""
MODULE = re.compile(rb'^:vpi_module\s*(?:"([^"\n]*)")?', re.MULTILINE)
FILES = re.compile(rb'^\s*"((?:[^"\\]|\\.)*)";', re.MULTILINE)

# ---- every system task and function of Icarus Verilog 13, by its possible effects outside the simulation

READS = {"$readmemb", "$readmemh", "$sdf_annotate", "$fopenr"}
"""Calls whose first argument names a file to read."""
WRITES = {"$fopen", "$fopenw", "$fopena", "$writememb", "$writememh", "$ivlh_file_open"}
"""Calls that open a file for writing, or in a mode that is only known at run time."""
HOSTILE = {"$system", "$exec", "$shell", "$popen", "$readmempath", "$vpi_tree", "$input", "$key", "$log", "$save"}
HOSTILE |= {"$restart", "$incsave", "$table_model"}
"""Calls that no honest design needs: they use files, processes or the simulator's own state."""

_KNOWN = """
abs abstime acos acosh asin asinh atan atan2 atanh bits bitstoreal bitstoshortreal ceil clog2 cos cosh countbits
countdrivers countones deposit dimensions display displayb displayh displayo dist_chi_square dist_erlang
dist_exponential dist_normal dist_poisson dist_t dist_uniform dumpall dumpfile dumpflush dumplimit dumpoff dumpon
dumpports dumpportsall dumpportsflush dumpportslimit dumpportsoff dumpportson dumpvars error exp fatal fclose
fdisplay fdisplayb fdisplayh fdisplayo feof ferror fflush fgetc fgets finish finish_and_return floor fmonitor
fmonitorb fmonitorh fmonitoro fputc fread fscanf fseek fstrobe fstrobeb fstrobeh fstrobeo ftell fwrite fwriteb
fwriteh fwriteo getpattern high hypot increment info isunknown itor left list ln log10 low max min monitor monitorb
monitorh monitoro monitoroff monitoron mti_dist_uniform mti_random nokey nolog onehot onehot0 pow printtimescale
q_add q_exam q_full q_initialize q_remove random realtime realtobits rewind right rtoi scale scope sformat sformatf
shortrealtobits showscopes showvars simparam simparam$str simtime sin sinh size sqrt sreadmemb sreadmemh sscanf
stime stop strobe strobeb strobeh strobeo swrite swriteb swriteh swriteo tan tanh test$plusargs time timeformat
ungetc unpacked_dimensions urandom urandom_range value$plusargs warning write writeb writeh writeo async$and$array
async$and$plane async$nand$array async$nand$plane async$nor$array async$nor$plane async$or$array async$or$plane
sync$and$array sync$and$plane sync$nand$array sync$nand$plane sync$nor$array sync$nor$plane sync$or$array
sync$or$plane delete pop_back pop_front ivlh_attribute_event ivlh_falling_edge ivlh_read ivlh_readline
ivlh_rising_edge ivlh_shift_left ivlh_shift_right ivlh_write ivlh_writeline
"""
KNOWN = {f"${name}" for name in _KNOWN.split()} | READS | WRITES
"""Every call that a design may make."""
METHODS = ("$ivl_",)
"""Prefixes of the compiler's names for methods of strings, enumerations, queues and arrays."""


def below(path: str, folders: tuple[str, ...]) -> bool:
    """Whether a path is one of the folders or is inside one."""
    return any(path == folder or path.startswith(folder + "/") for folder in folders)


def short(path: str) -> str:
    """A path relative to the work folder."""
    return path.removeprefix("/code/")


def read_compiled(path: str) -> tuple[bytes, list[str]]:
    """The text of a compiled design, and the names of its sources, by their number in it."""
    with open(path, "rb") as stream:
        text = stream.read()
    return text, [os.fsdecode(name) for name in FILES.findall(text, text.rfind(b"\n:file_names"))]


def has_hidden(path: str) -> bool:
    """Whether a compiled design has sources outside of the folders of designs and of the image."""
    names = filter(os.path.isfile, read_compiled(path)[1])
    return not all(below(os.path.realpath(name), (*READABLE, *LIBRARIES[:1])) for name in names)


def check_vvp(path: str) -> tuple[list[str], list[str], bool]:
    """Check a compiled design: (violations, reasons to refuse it, whether its waveforms can be omitted).

    They can be omitted if each waveform file could be created. Otherwise the simulator may stop, which must not change.
    """
    text, files = read_compiled(path)
    complete = text.rfind(b"\n:file_names") >= 0  # it is at the end
    violations, refusals = [], [] if complete else [f"{short(path)}: the compiled design is not complete"]
    dumps, computed = [b"dump"], []
    for call in CALL.finditer(text):
        name, number = call["name"].decode("latin-1"), int(call["file"])
        file = files[number] if number < len(files) else "?"
        if name == "$dumpfile":
            if call["literal"] is not None:
                dumps.append(call["literal"])
            else:
                computed.append(file)
        elif name in HOSTILE:
            violations.append(f"{short(file)}:{int(call['line'])}: {name} reaches out of the simulation")
        elif name not in KNOWN and not name.startswith(METHODS):
            refusals.append(f"{short(file)}:{int(call['line'])}: {name} is no task or function of this simulator")
    for module in MODULE.finditer(text):
        loaded = os.fsdecode(module[1] or b"")
        if not below(os.path.realpath(loaded), LIBRARIES):
            violations.append(f"{path}: loads {loaded!r} into the simulator by :vpi_module")
    silent = (not computed or _is_cocotbs(computed)) and all(map(_can_be_created, dumps))
    return violations, refusals, silent


def _is_cocotbs(computed: list[str]) -> bool:
    """Whether the only computed waveform file name is in the module that cocotb adds if a harness requests waveforms.

    A `line directive can claim to be that file. But then it does not exist, or there are two computed names.
    """
    file = os.path.abspath(computed[0])
    added = os.path.basename(file) == COCOTB_DUMP and not below(file, EDITABLE) and os.path.exists(file)
    return added and len(computed) == 1


def _can_be_created(name: bytes) -> bool:
    """Whether a waveform file of this name can be opened for writing, with any suffix that the simulator adds."""
    folder, start = os.path.split(name)
    if len(name) > LONGEST_NAME or not os.access(folder or b".", os.R_OK | os.W_OK | os.X_OK):
        return False
    alike = [entry for entry in os.scandir(folder or b".") if entry.name.startswith(start)]
    return all(entry.is_file() and os.access(entry.path, os.W_OK) for entry in alike)
