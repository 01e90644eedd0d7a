#include "checkpoint/gguf/gguf_splits.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <map>
#include <set>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/config.h"

namespace moracle {
namespace gguf_splits {
namespace {

constexpr std::string_view kEnding = ".gguf";

// "model" and 3 for "model-00002-of-00003.gguf"; count 0: the name of an unsplit file.
struct SplitName {
  std::string stem;
  int64_t number = 0, count = 0;
};

std::string split_name(const std::string& stem, int64_t number, int64_t count) {
  char text[64];
  std::snprintf(text, sizeof text, "-%05" PRId64 "-of-%05" PRId64 ".gguf", number, count);
  return stem + text;
}

SplitName parse_name(const std::string& name) {
  constexpr size_t kLength = sizeof "-00001-of-00003.gguf" - 1;
  if (name.size() <= kLength) return {};
  SplitName split{name.substr(0, name.size() - kLength)};
  const std::string rest = name.substr(split.stem.size());
  const bool found =
      std::sscanf(rest.c_str(), "-%5" SCNd64 "-of-%5" SCNd64, &split.number, &split.count) == 2;
  if (found && split.number >= 1 && split.number <= split.count &&
      split_name(split.stem, split.number, split.count) == name)
    return split;
  return {};
}

// Files with an image encoder for a language model.
bool is_projector(const std::string& name) {
  return name.find("mmproj") != std::string::npos;
}

std::vector<std::string> gguf_names(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    std::string name = entry.path().filename().string();
    if (name.ends_with(kEnding) && name.size() > kEnding.size()) names.push_back(std::move(name));
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Finds the only model in a folder and returns one of its files.
Result<std::string> find_model(const std::string& folder, std::vector<std::string>& left_out) {
  std::map<std::string, std::string> models;  // by the name without the file's number
  for (const std::string& name : gguf_names(folder)) {
    if (is_projector(name)) {
      left_out.push_back(name);
      continue;
    }
    const SplitName split = parse_name(name);
    models.try_emplace(split.count == 0 ? name : split_name(split.stem, 1, split.count), name);
  }
  if (models.size() == 1) return folder + "/" + models.begin()->second;
  std::vector<std::string> names;
  for (const auto& [model, file] : models) names.push_back(model);
  if (names.empty()) {
    return Error{ErrorKind::kBadFile, folder, "", "config.json, or a model in GGUF",
                 "it has only " + join(left_out)};
  }
  return Error{ErrorKind::kBadFile, folder, "",
               "config.json, or one model in GGUF; give the path of the file",
               "it has " + join(names)};
}

// All files of the model that `path` belongs to.
Result<std::vector<std::string>> split_paths(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  const std::string folder = slash == std::string::npos ? "" : path.substr(0, slash + 1);
  const SplitName split = parse_name(path.substr(folder.size()));
  if (split.count == 0) return std::vector<std::string>{path};
  std::vector<std::string> paths, missing;
  for (int64_t i = 1; i <= split.count; ++i) {
    const std::string name = split_name(split.stem, i, split.count);
    paths.push_back(folder + name);
    if (is_absent(paths.back())) missing.push_back(name);
  }
  if (missing.empty()) return paths;
  const size_t num_missing = missing.size();
  if (num_missing > 4) missing.resize(4);
  return Error{ErrorKind::kBadFile, path, "",
               str("all of ", split.count, " files; download ", join(missing),
                   num_missing > 4 ? str(" and ", num_missing - 4, " more") : ""),
               str(num_missing, num_missing == 1 ? " is" : " are", " not beside it")};
}

// Removes a number of the split from a file's metadata and returns it.
Result<int64_t> take_number(nlohmann::json& metadata, const std::string& path, const char* key,
                            int64_t absent) {
  const auto found = metadata.find(key);
  if (found == metadata.end()) return absent;
  const nlohmann::json value = *found;
  metadata.erase(found);
  return JsonField(value, path, str("metadata '", key, "'")).integer(0, INT32_MAX);
}

}  // namespace
}  // namespace gguf_splits

bool is_gguf_path(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    return is_absent(path + "/config.json") && !gguf_splits::gguf_names(path).empty();
  return !is_absent(path) && (path.ends_with(gguf_splits::kEnding) || is_gguf(path));
}

Result<GgufSplits> open_gguf_splits(const std::string& path) {
  using namespace gguf_splits;
  GgufSplits splits;
  std::error_code ignored;
  std::string file_path = path;
  if (std::filesystem::is_directory(path, ignored)) {
    MORACLE_TRY(file_path, find_model(path, splits.left_out));
  }
  MORACLE_TRY(const std::vector<std::string> paths, split_paths(file_path));
  const auto num_splits = static_cast<int64_t>(paths.size());
  int64_t num_tensors = 0, declared = -1;
  for (int64_t i = 0; i < num_splits; ++i) {
    MORACLE_TRY(GgufFile file, GgufFile::open(paths[i]));
    const std::string& split = paths[i];
    MORACLE_TRY(const int64_t count, take_number(file.metadata, split, "split.count", 0));
    MORACLE_TRY(const int64_t number, take_number(file.metadata, split, "split.no", 0));
    MORACLE_TRY(const int64_t tensors,
                take_number(file.metadata, split, "split.tensors.count", -1));
    if (count > 1 && num_splits == 1) {
      return Error{ErrorKind::kBadFile, split, "metadata 'split.count'",
                   str("a name such as ", split_name("model", number + 1, count),
                       ", because the file is one part"),
                   str("it is ", count)};
    }
    if (num_splits > 1 && (count != num_splits || number != i)) {
      return Error{ErrorKind::kBadFile, split, "metadata 'split.no' and 'split.count'",
                   str(i, " and ", num_splits, ", as the name of the file says"),
                   str("they are ", number, " and ", count)};
    }
    if (num_splits > 1 && tensors >= 0) declared = tensors;
    num_tensors += static_cast<int64_t>(file.file.tensors().size());
    if (i == 0) splits.metadata = std::move(file.metadata);
    splits.files.push_back(std::move(file.file));
  }
  if (declared >= 0 && declared != num_tensors) {
    return Error{ErrorKind::kBadFile, paths[0], "metadata 'split.tensors.count'",
                 str(num_tensors, ", the tensors in all parts"), str("it is ", declared)};
  }
  return splits;
}

}  // namespace moracle
