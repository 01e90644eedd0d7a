// The table of docs/models.md, from the families' own rows.
#include <algorithm>
#include <vector>

#include "base/text.h"
#include "docs/generated.h"
#include "models/families/family.h"

namespace moracle::docs {

namespace {

bool wrapped(const Family& family) {
  return !family.multimodal.empty() && family.multimodal != family.architecture;
}

}  // namespace

std::string family_rows() {
  std::vector<const Family*> rows(families().begin(), families().end());
  std::stable_partition(rows.begin(), rows.end(),
                        [](const Family* family) { return family->describe != nullptr; });
  std::string text = "| models | `architectures` | support | notes |\n| --- | --- | --- | --- |\n";
  for (const Family* family : rows) {
    text +=
        str("| ", family->models, " | `", family->architecture,
            wrapped(*family) ? str("`, `", family->multimodal) : "", "` | ",
            family->describe != nullptr ? "runs" : "experts only", " | ", family->notes, " |\n");
  }
  return text;
}

}  // namespace moracle::docs
