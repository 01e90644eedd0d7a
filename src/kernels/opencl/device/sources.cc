#include "kernels/opencl/device/sources.h"

#include <set>

#include "kernels/opencl/embedded_sources.h"

namespace moracle::opencl {
namespace {

void append(std::string_view file, std::set<std::string_view>& seen, std::string& out) {
  if (!seen.insert(file).second) return;
  std::string_view rest = source(file);
  constexpr std::string_view kInclude = "#include \"";
  while (!rest.empty()) {
    const size_t length = std::min(rest.find('\n'), rest.size() - 1) + 1;
    const std::string_view line = rest.substr(0, length);
    rest.remove_prefix(length);
    if (!line.starts_with(kInclude)) {
      out += line;
      continue;
    }
    const std::string_view named = line.substr(kInclude.size());
    append(named.substr(0, named.find('"')), seen, out);
  }
}

}  // namespace

std::string_view source(std::string_view file) {
  for (const EmbeddedSource& one : kEmbeddedSources) {
    if (one.name == file) return one.text;
  }
  return {};
}

std::string with_includes(std::string_view file) {
  std::set<std::string_view> seen;
  std::string text;
  append(file, seen, text);
  return text;
}

std::string_view source_name(size_t index) {
  return index < std::size(kEmbeddedSources) ? kEmbeddedSources[index].name : std::string_view();
}

}  // namespace moracle::opencl
