#include "caches/memory_rates.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <vector>

#include "base/printable.h"
#include "base/text.h"
#include "base/try.h"
#include "kernels/limits.h"
#include "terminal.h"

namespace moracle::cli {
namespace memory_rates {
namespace {

struct RateName {
  std::string_view text;
  double MemoryRates::*rate;
};
constexpr RateName kRateNames[] = {{"host", &MemoryRates::host},
                                   {"gpu", &MemoryRates::device},
                                   {"bus", &MemoryRates::bus},
                                   {"files", &MemoryRates::files}};

Error wrong(const std::string& text) {
  return {ErrorKind::kInvalidArgument, "", "--rates",
          "rates in GB/s, such as host=80,gpu=3000,bus=50, each at most once, and files=2 where "
          "files have some experts",
          "it is " + quote(text)};
}

// The largest file of the checkpoint; empty: none.
std::string largest_file(const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (fs::is_regular_file(folder, ignored)) return folder;
  std::string largest;
  uintmax_t most = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    const uintmax_t bytes = entry.file_size(ignored);
    if (ignored || !entry.is_regular_file(ignored) || bytes <= most) continue;
    largest = entry.path().string();
    most = bytes;
  }
  return largest;
}

// Bytes per second of pieces of the file as large as experts, which the page cache has dropped.
double read_file_rate(const std::string& path) {
  constexpr off_t kPiece = 4 << 20;
  constexpr int kMost = 64;
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  const off_t pieces = ::lseek(file, 0, SEEK_END) / kPiece;
  std::vector<char> piece(kPiece);
  double bytes = 0, seconds = 0;
  for (int i = 0; i < std::min<off_t>(pieces, kMost); ++i) {
    // Far apart, as the experts of a token are.
    const off_t at = i * (pieces / std::min<off_t>(pieces, kMost)) * kPiece;
    if (::posix_fadvise(file, at, kPiece, POSIX_FADV_DONTNEED) != 0) break;
    const auto start = std::chrono::steady_clock::now();
    const ssize_t read = ::pread(file, piece.data(), piece.size(), at);
    seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (read <= 0) break;
    bytes += static_cast<double>(read);
  }
  ::close(file);
  return seconds > 0 ? bytes / seconds : 0;
}

}  // namespace
}  // namespace memory_rates

Result<MemoryRates> parse_rates(const std::string& text) {
  using namespace memory_rates;
  MemoryRates rates;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string_view item = std::string_view(text).substr(at, end - at);
    const size_t equal = std::min(item.find('='), item.size());
    const auto found =
        std::find_if(std::begin(kRateNames), std::end(kRateNames),
                     [&](const RateName& name) { return name.text == item.substr(0, equal); });
    double value = 0;
    if (found == std::end(kRateNames) || equal + 1 >= item.size()) return wrong(text);
    const char* const last = item.data() + item.size();
    const auto [stop, error] = std::from_chars(item.data() + equal + 1, last, value);
    if (error != std::errc() || stop != last || !(value > 0) || value > 1e6 ||
        rates.*found->rate > 0)
      return wrong(text);
    rates.*found->rate = value * 1e9;
    at = end + 1;
  }
  return rates;
}

Result<MemoryRates> measure_rates(const std::shared_ptr<Device>& device, int threads,
                                  const Checkpoint& checkpoint, const Progress& progress) {
  using namespace memory_rates;
  MemoryRates rates;
  {
    MORACLE_TRY(const std::shared_ptr<Device> cpu, open_device("cpu", threads));
    MORACLE_TRY(const auto probe, open_limits(cpu, threads, 0, progress));
    MORACLE_TRY(rates.host, probe->read_bytes_per_second());
  }
  MORACLE_TRY(const auto probe, open_limits(device, threads, 0, progress));
  MORACLE_TRY(rates.device, probe->read_bytes_per_second());
  MORACLE_TRY(rates.bus, probe->copy_bytes_per_second());
  // A device that the host writes directly has the host's memory.
  if (rates.bus <= 0) rates.bus = rates.host;
  rates.files = read_file_rate(largest_file(checkpoint.folder()));
  return rates;
}

std::string describe(const MemoryRates& rates) {
  const auto gb = [](double rate) { return rounded(rate / 1e9, rate < 1e10 ? 1 : 0); };
  std::string text =
      str("host ", gb(rates.host), " GB/s, GPU ", gb(rates.device), ", bus ", gb(rates.bus));
  if (rates.files > 0) text += ", files " + gb(rates.files);
  return text;
}

}  // namespace moracle::cli
