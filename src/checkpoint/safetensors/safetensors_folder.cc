#include "checkpoint/tensors/tensors.h"

#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <set>
#include <span>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/config.h"
#include "checkpoint/safetensors/safetensors.h"

namespace moracle {
namespace {

// A shard's name must be a plain file name, so that an index cannot refer to files outside its
// folder.
bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

Result<Tensors> open_sharded(const std::string& folder, const std::string& index_path) {
  MORACLE_TRY(const Config index, Config::open(index_path));
  MORACLE_TRY(const auto weight_map, index.object({"weight_map"}));
  if (!weight_map) return index.wrong({"weight_map"}, "an object", "it is missing");
  std::set<std::string> names;
  for (const auto& [tensor, shard] : weight_map->value().items()) {
    if (!shard.is_string() || !is_plain_name(shard.get<std::string>())) {
      return Error{ErrorKind::kBadFile, index_path, "weight_map." + tensor,
                   "the name of a file in the same folder", "it is " + JsonField::shown(shard)};
    }
    names.insert(shard.get<std::string>());
  }
  std::vector<TensorFile> files;
  for (const std::string& name : names) {
    const std::string path = folder + "/" + name;
    if (is_absent(path)) {
      return Error{ErrorKind::kBadFile, path, "",
                   "to exist, because model.safetensors.index.json lists this shard",
                   "the file does not exist"};
    }
    MORACLE_TRY(TensorFile file, SafetensorsFile::open(path));
    for (const auto& [tensor, stored] : file.tensors()) {
      const auto listed = weight_map->value().find(tensor);
      if (listed == weight_map->value().end() || listed->get<std::string>() != name) {
        return Error{ErrorKind::kBadFile, path, "tensor '" + tensor + "'",
                     "to be listed for this shard in model.safetensors.index.json",
                     "it is not listed"};
      }
    }
    files.push_back(std::move(file));
  }
  MORACLE_TRY(Tensors tensors, Tensors::from(std::move(files)));
  for (const auto& [tensor, shard] : weight_map->value().items()) {
    if (tensors.find(tensor) == nullptr) {
      return Error{ErrorKind::kBadFile, folder + "/" + shard.get<std::string>(),
                   "tensor '" + tensor + "'", "to be in this shard, as the index says",
                   "it is missing"};
    }
  }
  return tensors;
}

std::string numbered_shard(int64_t number, int64_t count) {
  char name[64];
  std::snprintf(name, sizeof name, "model-%05" PRId64 "-of-%05" PRId64 ".safetensors", number,
                count);
  return name;
}

// The count in "model-00002-of-00003.safetensors"; 0: another name.
int64_t shard_count(const std::string& name) {
  int64_t number = 0, count = 0;
  if (std::sscanf(name.c_str(), "model-%5" SCNd64 "-of-%5" SCNd64, &number, &count) != 2) return 0;
  const bool valid = number >= 1 && number <= count && numbered_shard(number, count) == name;
  return valid ? count : 0;
}

// At most four of the names.
std::string some_of(const std::vector<std::string>& names) {
  constexpr size_t kMost = 4;
  if (names.size() <= kMost) return join(names);
  return str(join(std::span(names).first(kMost)), " and ", names.size() - kMost, " more");
}

// Opens the shards of a folder without an index: each name says how many there are. Nothing else
// can tell that a shard is complete, so all must be there.
Result<Tensors> open_numbered(const std::string& folder) {
  std::set<std::string> found;
  std::set<int64_t> counts;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    const int64_t count = shard_count(name);
    if (count == 0) continue;
    counts.insert(count);
    found.insert(name);
  }
  const std::vector<std::string> names(found.begin(), found.end());
  if (names.empty()) {
    return Error{ErrorKind::kBadFile, folder, "",
                 "model.safetensors, or shards model-00001-of-0000N.safetensors and so on",
                 "the folder has neither"};
  }
  if (counts.size() > 1) {
    return Error{ErrorKind::kBadFile, folder, "",
                 "model.safetensors.index.json, because the folder has shards of several sets",
                 str("it has ", some_of(names))};
  }
  const int64_t count = *counts.begin();
  std::vector<std::string> missing;
  for (int64_t i = 1; i <= count; ++i) {
    if (!found.contains(numbered_shard(i, count))) missing.push_back(numbered_shard(i, count));
  }
  if (!missing.empty()) {
    return Error{ErrorKind::kBadFile, folder, "",
                 str("all of ", count, " shards; download ", some_of(missing)),
                 str("it has ", some_of(names), " and no model.safetensors.index.json")};
  }
  std::vector<TensorFile> files;
  for (const std::string& name : names) {
    MORACLE_TRY(TensorFile file, SafetensorsFile::open(folder + "/" + name));
    files.push_back(std::move(file));
  }
  return Tensors::from(std::move(files));
}

}  // namespace

Result<Tensors> open_safetensors(const std::string& folder) {
  const std::string index = folder + "/model.safetensors.index.json";
  const std::string single = folder + "/model.safetensors";
  const auto open_any = [&]() -> Result<Tensors> {
    if (!is_absent(index)) return open_sharded(folder, index);
    if (is_absent(single)) return open_numbered(folder);
    MORACLE_TRY(TensorFile file, SafetensorsFile::open(single));
    std::vector<TensorFile> files;
    files.push_back(std::move(file));
    return Tensors::from(std::move(files));
  };
  Result<Tensors> tensors = open_any();
  if (tensors) tensors->set_folder(folder);
  return tensors;
}

}  // namespace moracle
