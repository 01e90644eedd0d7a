#include "checkpoint/write/write_safetensors.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "base/text.h"
#include "base/try.h"

namespace moracle {

namespace {

// The length and the header. Space padding aligns the data to 8 bytes.
Result<std::string> header_of(const std::vector<SafetensorsEntry>& entries) {
  nlohmann::ordered_json header = {{"__metadata__", {{"format", "pt"}}}};
  int64_t begin = 0;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.dtype == DType::kI4) {
      return Error{ErrorKind::kUnsupported, "", "tensor '" + entry.name + "'",
                   "a dtype of safetensors", "it is i4"};
    }
    std::string dtype(name(entry.dtype));
    for (char& c : dtype) c = 'a' <= c && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    header[entry.name] = {
        {"dtype", dtype}, {"shape", entry.shape}, {"data_offsets", {begin, begin + entry.bytes()}}};
    begin += entry.bytes();
  }
  std::string text = header.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string length(8, '\0');
  for (int i = 0; i < 8; ++i) length[i] = static_cast<char>(uint64_t{text.size()} >> (8 * i));
  return length + text;
}

}  // namespace

Result<SafetensorsWriter> SafetensorsWriter::create(const std::string& path,
                                                    std::vector<SafetensorsEntry> entries) {
  std::sort(entries.begin(), entries.end(),
            [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
              return std::make_tuple(-bits(a.dtype), std::string_view(a.name)) <
                     std::make_tuple(-bits(b.dtype), std::string_view(b.name));
            });
  MORACLE_TRY(const std::string header, header_of(entries));
  std::map<std::string, RangedFile::Range> ranges;
  auto end = static_cast<int64_t>(header.size());
  for (const SafetensorsEntry& entry : entries) {
    ranges[entry.name] = {end, entry.bytes()};
    end += entry.bytes();
  }
  MORACLE_TRY(RangedFile file, RangedFile::create(path, header, std::move(ranges), end));
  return SafetensorsWriter(std::move(file));
}

std::string shard_name(size_t index, size_t count) {
  if (count == 1) return "model.safetensors";
  const auto digits = [](size_t number) {
    std::string text = std::to_string(number);
    return text.size() < 5 ? std::string(5 - text.size(), '0') + text : text;
  };
  return str("model-", digits(index + 1), "-of-", digits(count), ".safetensors");
}

std::vector<std::vector<size_t>> plan_shards(std::span<const int64_t> item_bytes, int64_t limit) {
  std::vector<std::vector<size_t>> shards;
  int64_t in_last = 0;
  for (size_t i = 0; i < item_bytes.size(); ++i) {
    if (shards.empty() || in_last + item_bytes[i] > limit) {
      shards.emplace_back();
      in_last = 0;
    }
    shards.back().push_back(i);
    in_last += item_bytes[i];
  }
  return shards;
}

}  // namespace moracle
