// Writes and checks the generated parts of docs/. In a Markdown file a part stands between two
// lines,
//
//   <!-- generated: NAME -->
//   <!-- end generated -->
//
// and has to stand in exactly one place: a part without a place is an error, like a stale part.
// Nothing here asks for the machine at hand, so that every machine writes the same.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/text.h"
#include "base/try.h"
#include "docs/generated.h"
#include "layout/layout.h"
#include "moracle/base.h"
#include "published/answers.h"

namespace moracle::docs {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kBegin = "<!-- generated: ", kBeginEnd = " -->";
constexpr std::string_view kEnd = "<!-- end generated -->";

std::string read(const fs::path& path) {
  std::ostringstream text;
  if (std::ifstream in(path, std::ios::binary); in.peek() != EOF) text << in.rdbuf();
  return std::move(text).str();
}

/// The generated text; nullopt keeps the file's text, if the configs are not beside the clone.
using Part = std::optional<std::string>;

Result<Part> published_table(const std::string& configs) {
  const std::vector<std::string> paths = published::published_configs(configs);
  if (paths.empty()) return Part();
  std::string text = published::table_head();
  const fs::path scratch = fs::temp_directory_path() / str("moracle-docs-", ::getpid());
  for (const std::string& path : paths) {
    fs::create_directories(scratch);
    const Result<published::Answer> answer = published::ask(path, scratch.string());
    fs::remove_all(scratch);
    if (!answer) return answer.error();
    text += published::table_row(*answer);
  }
  return Part(text);
}

std::map<std::string, Part> parts() {
  std::map<std::string, Part> all = {{"backends", backend_rows()},
                                     {"families", family_rows()},
                                     {"feature-matrix", feature_matrix()},
                                     {"support-matrix", support_matrix()}};
  for (const Layout* layout : layouts()) all[str("layout ", layout->name)] = layout_part(*layout);
  return all;
}

/// The file with every part up to date. Removes the parts that it finds from `unplaced`.
Result<std::string> fill(const fs::path& path, const std::map<std::string, Part>& parts,
                         std::set<std::string>& unplaced) {
  std::istringstream in(read(path));
  std::string filled, part;
  bool keeps = false;  // true: leave the lines of `part` as they are
  int number = 0;
  auto wrong = [&](std::string need, std::string fact) {
    return Error{ErrorKind::kBadFile, path.string(), str("line ", number), need, fact};
  };
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (line.starts_with(kBegin)) {
      if (!part.empty()) return wrong(str("'", kEnd, "' of ", part), "another part begins");
      part = line.substr(kBegin.size(), line.rfind(kBeginEnd) - kBegin.size());
      const auto found = parts.find(part);
      if (found == parts.end()) return wrong("a part that is generated", str("it is '", part, "'"));
      if (unplaced.erase(part) == 0) return wrong("each part once", str(part, " occurs twice"));
      keeps = !found->second;
      filled += line + "\n" + found->second.value_or("");
      continue;
    } else if (line == kEnd) {
      if (part.empty()) return wrong("the beginning of a part", "only its end");
      part.clear();
    }
    if (part.empty() || keeps) filled += line + "\n";
  }
  if (!part.empty()) return wrong(str("'", kEnd, "' of ", part), "the file ends");
  return filled;
}

/// Every file with a generated part, up to date.
Result<std::map<fs::path, std::string>> wanted(const fs::path& folder, const std::string& configs) {
  std::map<std::string, Part> all = parts();
  MORACLE_TRY(all["published"], published_table(configs));
  std::set<std::string> unplaced;
  for (const auto& [name, text] : all) unplaced.insert(name);
  std::map<fs::path, std::string> files;
  std::set<fs::path> texts;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".md") texts.insert(entry.path());
  }
  for (const fs::path& path : texts) {
    Result<std::string> filled = fill(path, all, unplaced);
    if (!filled) return filled.error();
    files[path] = *std::move(filled);
  }
  if (!unplaced.empty()) {
    return Error{ErrorKind::kBadFile, folder.string(), "",
                 str("the line '", kBegin, *unplaced.begin(), kBeginEnd, "' and '", kEnd, "'"),
                 "no Markdown file has it"};
  }
  for (auto& [name, svg] : layout_pictures()) files[folder / "pictures" / name] = svg;
  return files;
}

/// Pictures of layouts that no longer exist.
std::vector<fs::path> left_over(const fs::path& folder,
                                const std::map<fs::path, std::string>& files) {
  std::vector<fs::path> found;
  if (!fs::is_directory(folder / "pictures")) return found;
  for (const auto& entry : fs::directory_iterator(folder / "pictures")) {
    const bool ours = entry.path().filename().string().starts_with("layout-");
    if (ours && !files.contains(entry.path())) found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

void print_difference(const fs::path& path, const std::string& is, const std::string& should_be) {
  std::istringstream old_text(is), new_text(should_be);
  std::string was, want;
  for (int number = 1;; ++number) {
    if (!std::getline(old_text, was)) was = "(nothing)";
    if (!std::getline(new_text, want)) want = "(nothing)";
    if (was == want && (old_text || new_text)) continue;
    std::cerr << path.string() << ", line " << number;
    if (was == want)
      std::cerr << ": differs in its line ends\n";
    else
      std::cerr << "\n- " << was << "\n+ " << want << "\n";
    return;
  }
}

int check(const fs::path& folder, const std::map<fs::path, std::string>& files) {
  bool fresh = true;
  for (const auto& [path, text] : files) {
    const std::string is = read(path);
    if (is == text) continue;
    fresh = false;
    print_difference(path, is, text);
    break;
  }
  for (const fs::path& path : left_over(folder, files)) {
    fresh = false;
    std::cerr << path.string() << ": nothing generates this picture\n";
  }
  if (!fresh) std::cerr << "If the change is meant: ./dev docs\n";
  return fresh ? 0 : 1;
}

int write(const fs::path& folder, const std::map<fs::path, std::string>& files) {
  fs::create_directories(folder / "pictures");
  for (const auto& [path, text] : files) {
    if (read(path) == text) continue;
    if (!(std::ofstream(path, std::ios::binary) << text << std::flush)) {
      std::cerr << path.string() << ": cannot be written\n";
      return 1;
    }
    std::cout << "wrote " << path.string() << "\n";
  }
  for (const fs::path& path : left_over(folder, files)) {
    fs::remove(path);
    std::cout << "removed " << path.string() << "\n";
  }
  return 0;
}

int run(const std::vector<std::string>& arguments) {
  if (arguments.size() < 2 || arguments.size() > 3 ||
      (arguments[0] != "--write" && arguments[0] != "--check") || !fs::is_directory(arguments[1])) {
    std::cerr << "moracle-docs --write DOCS_DIR [CONFIGS]   brings the generated parts up to date\n"
                 "moracle-docs --check DOCS_DIR [CONFIGS]   exits with 1 where one is stale\n"
                 "CONFIGS: config.json files of published models; without them their table stays\n";
    return 2;
  }
  const auto files = wanted(arguments[1], arguments.size() > 2 ? arguments[2] : "");
  if (!files) {
    std::cerr << files.error().to_string() << "\n";
    return 1;
  }
  return arguments[0] == "--write" ? write(arguments[1], *files) : check(arguments[1], *files);
}

}  // namespace
}  // namespace moracle::docs

int main(int argc, char** argv) {
  return moracle::docs::run({argv + 1, argv + argc});
}
