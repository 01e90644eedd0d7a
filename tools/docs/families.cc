// Generates the table of docs/models.md from the families' own rows.
#include <algorithm>
#include <vector>

#include "base/text.h"
#include "docs/generated.h"
#include "models/families/family.h"

namespace moracle::docs {

namespace {

// The names in config.json.
std::string names_of(const Family& family) {
  std::string text = str("`", family.architecture, "`");
  for (const std::string_view name : {family.also, family.multimodal}) {
    if (!name.empty() && name != family.architecture) text += str(", `", name, "`");
  }
  return text;
}

// The values of general.architecture.
std::string gguf_names_of(const Family& family) {
  std::string text;
  for (const GgufConvention& gguf : family.experts.gguf)
    text += str(text.empty() ? "`" : ", `", gguf.architecture, "`");
  return text;
}

}  // namespace

std::string family_rows() {
  std::vector<const Family*> rows(families().begin(), families().end());
  std::stable_partition(rows.begin(), rows.end(),
                        [](const Family* family) { return family->describe != nullptr; });
  std::string text =
      "| models | `architectures` | GGUF | support | notes |\n| --- | --- | --- | --- | --- |\n";
  for (const Family* family : rows) {
    text +=
        str("| ", family->models, " | ", names_of(*family), " | ", gguf_names_of(*family), " | ",
            family->describe != nullptr ? "runs" : "experts only", " | ", family->notes, " |\n");
  }
  return text;
}

}  // namespace moracle::docs
