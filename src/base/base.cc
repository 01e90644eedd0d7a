#include "moracle/base.h"

#include <cstdio>
#include <cstdlib>
#include <iterator>

#include "base/printable.h"
#include "base/text.h"

namespace moracle {

std::string Error::to_string() const {
  // Longer than every list of names in a message; shorter than a text that floods a terminal.
  constexpr size_t kMaxFieldBytes = 4000;
  std::string line;
  auto add = [&line](const std::string& field, const char* before, const char* lead = "") {
    if (field.empty()) return;
    line += (line.empty() ? "" : before) + (lead + printable(field, kMaxFieldBytes));
  };
  add(file, "");
  add(place, ": ");
  add(need, ": ", "needs ");
  add(fact, need.empty() ? ": " : "; ");
  return line;
}

void end_misused_result(const Error* error) {
  std::fprintf(stderr, "moracle: a caller read the %s\n",
               error == nullptr ? "error of a result that has none"
                                : ("value of a failed result: " + error->to_string()).c_str());
  std::abort();
}

namespace {
struct DTypeRow {
  std::string_view name;
  int bits;
};
// In enum order.
constexpr DTypeRow kDTypes[] = {{"f32", 32},    {"f16", 16},    {"bf16", 16},  {"f64", 64},
                                {"i64", 64},    {"i32", 32},    {"i16", 16},   {"i8", 8},
                                {"u8", 8},      {"i4", 4},      {"bool", 8},   {"f8_e4m3", 8},
                                {"f8_e5m2", 8}, {"f8_e8m0", 8}, {"f4_e2m1", 4}};
static_assert(std::size(kDTypes) == kNumDTypes);
}  // namespace

std::string_view name(DType type) {
  return kDTypes[static_cast<int>(type)].name;
}
int bits(DType type) {
  return kDTypes[static_cast<int>(type)].bits;
}

int64_t TensorView::num_elements() const {
  int64_t count = 1;
  for (int64_t d : shape) count *= d;
  return count;
}

size_t TensorView::num_bytes() const {
  return (static_cast<size_t>(num_elements()) * static_cast<size_t>(bits(dtype)) + 7) / 8;
}

std::string to_string(const TensorView& view) {
  return str(name(view.dtype), " [", join(view.shape), "]");
}

Matrix Matrix::slice(int64_t first, int64_t count) const {
  Matrix part = *this;
  part.data = static_cast<std::byte*>(data) + first * stride * bits(dtype) / 8;
  part.rows = count;
  return part;
}

}  // namespace moracle
