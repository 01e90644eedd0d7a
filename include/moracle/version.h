// The version of the library that these headers belong to. Plain C.
#pragma once

#define MORACLE_VERSION_MAJOR 0
#define MORACLE_VERSION_MINOR 1
#define MORACLE_VERSION_PATCH 0
