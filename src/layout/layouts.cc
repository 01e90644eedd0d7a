#include "layout/layout.h"

namespace moracle {

std::span<const Layout* const> layouts() {
#define X(layout) &layout,
  static constexpr const Layout* kAll[] = {
#include "layout/layouts.inc"
  };
#undef X
  return kAll;
}

}  // namespace moracle
