#include "caches/tuning_cache.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "base/json/json_text.h"
#include "base/small_file.h"
#include "base/text.h"
#include "base/threads/thread_pool.h"
#include "base/try.h"
#include "caches/locked_file.h"
#include "command.h"
#include "moracle/device.h"

namespace moracle::cli {
namespace {

Json machine_key(int threads, const DeviceName& device) {
  const Machine here = Machine::here();
  for (const GpuInfo& gpu : here.gpus) {
    if (gpu.platform == device.platform && gpu.index == device.index)
      return Json{{"platform", name(gpu.platform)}, {"gpu", gpu.model}};
  }
  // Return nothing for an absent GPU: opening it reports the error.
  if (device.platform != Platform::kCpu) return Json{{"platform", name(device.platform)}};
  return Json{{"cpu", here.cpu.model},
              {"isa", names(here.cpu.isa)},
              {"threads", threads < 1 ? usable_threads() : threads}};
}

Error not_ours(const std::string& path) {
  return {ErrorKind::kBadFile, path, "", "a file that `moracle tune` wrote",
          "it has other content; remove it, or name another file with --cache"};
}

// Reads the file if its version matches; empty if there is none.
Result<Json> read_file(const std::string& path) {
  const Json empty = {{"version", MORACLE_VERSION}, {"layers", Json::array()}};
  std::error_code ignored;
  if (path.empty() || !std::filesystem::exists(path, ignored)) return empty;
  MORACLE_TRY(const std::string text, read_small_file(path));
  if (!check_json_text(text, path)) return not_ours(path);
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("version") || !json.contains("layers") ||
      !json["layers"].is_array())
    return not_ours(path);
  // Other versions have different kernels.
  if (json["version"] != MORACLE_VERSION) return empty;
  return json;
}

// Parses the times of an entry. False: invalid.
bool parse_entry(const Json& entry, TunedLayer& layer) {
  if (!entry.is_object() || !entry.contains("machine") || !entry.contains("layer") ||
      !entry.contains("times") || !entry["layer"].is_string() || !entry["times"].is_array())
    return false;
  layer.layer = entry["layer"];
  for (const Json& time : entry["times"]) {
    const bool good = time.is_object() && time.contains("backend") && time["backend"].is_string() &&
                      time.contains("num_tokens") && time["num_tokens"].is_number_integer() &&
                      time.contains("us") && time["us"].is_number();
    if (!good) return false;
    layer.times.push_back({time["backend"], time["num_tokens"], time["us"]});
    const TunedTime& read = layer.times.back();
    if (read.num_tokens < 1 || !(read.us > 0) || !std::isfinite(read.us)) return false;
  }
  return true;
}

struct Rate {
  const char* name;
  double MemoryRates::*rate;
};
constexpr Rate kRates[] = {{"host", &MemoryRates::host},
                           {"device", &MemoryRates::device},
                           {"bus", &MemoryRates::bus},
                           {"files", &MemoryRates::files}};

// Rates depend on the CPU and the device.
Json rates_key(int threads, const DeviceName& device) {
  return {machine_key(threads, {}), machine_key(threads, device)};
}

// Every entry of "rates". Errors: other content.
Result<std::vector<std::pair<Json, MemoryRates>>> rates_in(const Json& file,
                                                           const std::string& path) {
  std::vector<std::pair<Json, MemoryRates>> all;
  if (!file.contains("rates")) return all;
  if (!file["rates"].is_array()) return not_ours(path);
  for (const Json& entry : file["rates"]) {
    if (!entry.is_object() || !entry.contains("machine")) return not_ours(path);
    auto& [machine, rates] = all.emplace_back(entry["machine"], MemoryRates());
    for (const auto& [name, rate] : kRates) {
      if (!entry.contains(name) || !entry[name].is_number()) return not_ours(path);
      rates.*rate = entry[name];
      if (!(rates.*rate >= 0) || !std::isfinite(rates.*rate)) return not_ours(path);
    }
  }
  return all;
}

}  // namespace

std::string cache_folder() {
  auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  const std::string xdg = variable("XDG_CACHE_HOME"), home = variable("HOME");
  if (xdg.empty() && home.empty()) return "";
  return (xdg.empty() ? home + "/.cache" : xdg) + "/moracle";
}

std::string default_tuning_cache() {
  const std::string folder = cache_folder();
  return folder.empty() ? "" : folder + "/tuning.json";
}

Result<std::vector<TunedLayer>> read_tuning(const std::string& named, int threads,
                                            const DeviceName& device) {
  const std::string path = named.empty() ? default_tuning_cache() : named;
  MORACLE_TRY(const Json json, read_file(path));
  const Json here = machine_key(threads, device);
  std::vector<TunedLayer> layers;
  for (const Json& entry : json["layers"]) {
    TunedLayer layer;
    if (!parse_entry(entry, layer)) return not_ours(path);
    if (entry["machine"] == here) layers.push_back(std::move(layer));
  }
  return layers;
}

Status check_tuning_writable(const std::string& path) {
  const Result<LockedFile> file = LockedFile::open(path, interrupted);
  return file ? Status() : file.error();
}

Status write_tuning(const std::string& path, int threads, const DeviceName& device,
                    const std::vector<TunedLayer>& layers) {
  // Lock before reading, to keep concurrent updates.
  MORACLE_TRY(LockedFile file, LockedFile::open(path, interrupted));
  MORACLE_TRY(Json json, read_file(path));
  const Json here = machine_key(threads, device);
  Json kept = Json::array();
  for (const Json& entry : json["layers"]) {
    TunedLayer old;
    if (!parse_entry(entry, old)) return not_ours(path);
    const bool replaced = std::any_of(layers.begin(), layers.end(), [&](const TunedLayer& layer) {
      return layer.layer == old.layer && entry["machine"] == here;
    });
    if (!replaced) kept.push_back(entry);
  }
  for (const TunedLayer& layer : layers) {
    Json times = Json::array();
    for (const TunedTime& time : layer.times)
      times.push_back(
          {{"backend", time.backend}, {"num_tokens", time.num_tokens}, {"us", time.us}});
    kept.push_back({{"machine", here}, {"layer", layer.layer}, {"times", times}});
  }
  json["layers"] = kept;
  return file.replace(json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

Result<MemoryRates> read_rates(const std::string& named, int threads, const DeviceName& device) {
  const std::string path = named.empty() ? default_tuning_cache() : named;
  MORACLE_TRY(const Json json, read_file(path));
  MORACLE_TRY(const auto all, rates_in(json, path));
  const Json here = rates_key(threads, device);
  for (const auto& [machine, rates] : all)
    if (machine == here) return rates;
  return MemoryRates();
}

Status write_rates(const std::string& path, int threads, const DeviceName& device,
                   const MemoryRates& rates) {
  MORACLE_TRY(LockedFile file, LockedFile::open(path, interrupted));
  MORACLE_TRY(Json json, read_file(path));
  MORACLE_TRY(auto all, rates_in(json, path));
  const Json here = rates_key(threads, device);
  std::erase_if(all, [&](const auto& one) { return one.first == here; });
  all.emplace_back(here, rates);
  json["rates"] = Json::array();
  for (const auto& [machine, of] : all) {
    Json entry = {{"machine", machine}};
    for (const auto& [name, rate] : kRates) entry[name] = of.*rate;
    json["rates"].push_back(std::move(entry));
  }
  return file.replace(json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace moracle::cli
