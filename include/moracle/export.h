// MORACLE_API: the names that a shared library exports. Public headers put it on their namespace or
// on each function. Plain C.
#pragma once

#if defined(__GNUC__)
#define MORACLE_API __attribute__((visibility("default")))
#else
#define MORACLE_API
#endif
