"""Every system task and function of Icarus Verilog 13, by what it can do outside of the simulation."""

from __future__ import annotations

READS = {"$readmemb", "$readmemh", "$sdf_annotate", "$fopenr"}
"""Calls whose first argument names a file to read."""
WRITES = {"$fopen", "$fopenw", "$fopena", "$writememb", "$writememh", "$ivlh_file_open"}
"""Calls that open a file for writing, or in a mode that is known only at run time."""
HOSTILE = {"$system", "$exec", "$shell", "$popen", "$readmempath", "$vpi_tree", "$input", "$key", "$log", "$save"}
HOSTILE |= {"$restart", "$incsave", "$table_model"}
"""Calls without an honest use in a design: they use files, processes or the simulator's own state."""

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
