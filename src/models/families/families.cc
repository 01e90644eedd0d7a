#include "models/families/family.h"

namespace moracle {
namespace {

constexpr const Family* kFamilies[] = {
#define X(family) &family,
#include "models/families/families.inc"
#undef X
};

}  // namespace

std::span<const Family* const> families() {
  return kFamilies;
}

// Declared in the checkpoint room, which may not include this one, as are the next functions.
const ExpertConvention* find_convention(std::string_view architecture) {
  for (const Family* family : kFamilies) {
    if (family->is(architecture)) return &family->experts;
  }
  return nullptr;
}

std::string model_class_of(const std::string& architecture, std::string_view model_type) {
  for (const Family* family : kFamilies) {
    const bool saved = !family->saved_as.empty() && family->saved_as == architecture;
    if (saved && family->model_type == model_type) return std::string(family->architecture);
  }
  return architecture;
}

std::vector<NamedConvention> conventions() {
  std::vector<NamedConvention> all;
  for (const Family* family : kFamilies) all.push_back({family->architecture, &family->experts});
  return all;
}

}  // namespace moracle
