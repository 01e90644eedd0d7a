// Ignoring an error is a warning, and the library builds with warnings as errors.
#pragma GCC diagnostic error "-Wunused-result"
#include "moracle/moe.h"

void reserve(moracle::Workspace& workspace) {
#ifdef MORACLE_MUST_NOT_COMPILE
  workspace.reserve(64);
#else
  if (!workspace.reserve(64)) return;
#endif
}
