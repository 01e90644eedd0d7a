// Generates the parts of docs/layouts.md: one picture for all types that are stored alike.
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "docs/generated.h"
#include "docs/sample.h"
#include "layout/layout.h"
#include "oracle/backend.h"

namespace moracle::docs {
namespace {

// The types to draw, if a layout holds them.
constexpr DType kTypes[] = {DType::kBF16,   DType::kF16, DType::kI8,
                            DType::kF8E4M3, DType::kI4,  DType::kF4E2M1};

/// One picture of all types that are stored alike. The first type names the file.
struct Picture {
  Sample sample;
  std::vector<DType> types;
  std::string file() const {
    return str("layout-", sample.layout.name, "-", name(types.front()), ".svg");
  }
  std::string title() const {
    std::vector<std::string_view> names;
    for (DType type : types) names.push_back(name(type));
    return str(sample.layout.name, " · ", join(names), " · ", Sample::kRows, " rows, ",
               Sample::kCols, " columns");
  }
};

std::vector<Picture> pictures(const Layout& layout) {
  std::vector<Picture> all;
  for (DType type : kTypes) {
    if (std::find(layout.holds.begin(), layout.holds.end(), type) == layout.holds.end()) continue;
    Sample sample(layout, type);
    const auto alike = std::find_if(all.begin(), all.end(), [&](const Picture& picture) {
      return picture.sample.lies_like(sample);
    });
    if (alike == all.end())
      all.push_back({std::move(sample), {type}});
    else
      alike->types.push_back(type);
  }
  return all;
}

}  // namespace

std::string layout_part(const Layout& layout) {
  std::vector<std::string> users;
  for (const Backend& backend : backends()) {
    if (backend.layout == &layout) users.push_back(str("`", backend.name, "`"));
  }
  std::string text =
      str("Used by ", users.empty() ? "no row" : join(users), ": ", layout.summary, ".\n");
  for (const Picture& picture : pictures(layout)) {
    text += str("\n![", picture.title(), "](pictures/", picture.file(), ")\n");
  }
  return text;
}

std::map<std::string, std::string> layout_pictures() {
  std::map<std::string, std::string> files;
  for (const Layout* layout : layouts()) {
    for (const Picture& picture : pictures(*layout)) {
      files[picture.file()] = draw(picture.sample, picture.title());
    }
  }
  return files;
}

}  // namespace moracle::docs
