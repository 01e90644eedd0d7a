// DrawOps for any CPU.
#include "kernels/cpu/sampling/draw_ops_table.h"

namespace moracle::cpu {

constinit const DrawOps kPortableDrawOps = draw_table("portable");

}  // namespace moracle::cpu
