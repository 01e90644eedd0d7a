// Error propagation: `MORACLE_TRY(auto x, f());` and `MORACLE_CHECK(status());`.
#pragma once

#include "moracle/base.h"

#define MORACLE_TRY_NAME_(line) moracle_try_##line
#define MORACLE_TRY_IMPL_(name, declaration, ...) \
  auto name = (__VA_ARGS__);                      \
  if (!name) return std::move(name).error();      \
  declaration = *std::move(name)
#define MORACLE_TRY_LINE_(line, declaration, ...) \
  MORACLE_TRY_IMPL_(MORACLE_TRY_NAME_(line), declaration, __VA_ARGS__)

/// Declares or assigns the value of a Result, or returns its Error from the enclosing function.
#define MORACLE_TRY(declaration, ...) MORACLE_TRY_LINE_(__LINE__, declaration, __VA_ARGS__)

/// Returns the Error of a Status from the enclosing function.
#define MORACLE_CHECK(...)                                                      \
  do {                                                                          \
    if (auto status = (__VA_ARGS__); !status) return std::move(status).error(); \
  } while (false)
