// An error that nobody looks at is a warning, and warnings are errors where the library is built.
#pragma GCC diagnostic error "-Wunused-result"
#include "moracle/moe.h"

void reserve(moracle::Workspace& workspace) {
#ifdef MORACLE_MUST_NOT_COMPILE
  workspace.reserve(64);
#else
  if (!workspace.reserve(64)) return;
#endif
}
