#include "bench/load.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <set>

#include "base/median.h"
#include "base/threads/thread_pool.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "kernels/kernel_device.h"
#include "kernels/limits.h"

namespace moracle::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::set<std::string> files_of(const Checkpoint& checkpoint) {
  std::set<std::string> files;
  const Tensors& tensors = checkpoint.state().tensors;
  for (const auto& [name, entry] : tensors.all()) files.insert(tensors.file_of(name));
  return files;
}

struct File {
  explicit File(const std::string& path) : fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
  ~File() {
    if (fd >= 0) ::close(fd);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd;
};

Status refused(const std::string& path) {
  return Error{ErrorKind::kIo, path, "", "a readable file", std::strerror(errno)};
}

// Drops the files from the page cache. This works for pages that are clean and not mapped, as those
// of a checkpoint's files are.
Status forget(const std::set<std::string>& files) {
  for (const std::string& path : files) {
    const File file(path);
    if (file.fd < 0) return refused(path);
    ::posix_fadvise(file.fd, 0, 0, POSIX_FADV_DONTNEED);
  }
  return {};
}

// Reads the files as `cat` would, into a buffer that stays in the cache. Returns the number of
// bytes.
Result<int64_t> read(const std::set<std::string>& files, const Progress& progress) {
  std::vector<char> buffer(size_t{1} << 18);
  int64_t bytes = 0;
  for (const std::string& path : files) {
    const File file(path);
    if (file.fd < 0) return refused(path).error();
    ::posix_fadvise(file.fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    for (;;) {
      const ssize_t got = ::read(file.fd, buffer.data(), buffer.size());
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return refused(path).error();
      if (got == 0) break;
      bytes += got;
      if (progress && !progress(0, 1))
        return Error{ErrorKind::kCancelled, "", "reading", "", "stopped on request"};
    }
  }
  return bytes;
}

// Takes memory from the system as a load does. The system clears it, and a virtual machine may
// first have to get it from the host.
Result<double> touch(int64_t bytes, Device& device) {
  const Clock::time_point start = Clock::now();
  MORACLE_TRY(const Buffer buffer, device.allocate(bytes));
  constexpr int64_t kPage = 4096;
  auto* const data = buffer.as<volatile char>();
  kernel_device(device).host_threads().split((bytes + kPage - 1) / kPage,
                                             [&](int64_t begin, int64_t end) {
                                               for (int64_t page = begin; page < end; ++page)
                                                 data[page * kPage] = 0;
                                             });
  return seconds_since(start);
}

// Probes of memory: touching fresh system memory, or copying to the device.
struct Memory {
  std::vector<double> touches, copies;

  Status measure(int64_t bytes, const ModelOptions& options) {
    MORACLE_TRY(const std::shared_ptr<Device> device,
                open_device(options.device, device_options(options)));
    if (device->host_visible()) {
      MORACLE_TRY(const double seconds, touch(bytes, *device));
      touches.push_back(seconds);
      return {};
    }
    constexpr size_t kBytes = size_t{64} << 20;
    MORACLE_TRY(const std::unique_ptr<LimitsProbe> probe,
                open_limits(device, options.threads, kBytes));
    MORACLE_TRY(const double copy, probe->copy_bytes_per_second());
    copies.push_back(copy);
    return {};
  }
};

struct Run {
  double seconds = 0, open_seconds = 0;
};

}  // namespace

Result<LoadTime> measure_load(const std::string& folder, const LoadOptions& options) {
  std::set<std::string> files;
  {
    MORACLE_TRY(const Checkpoint checkpoint, Checkpoint::open(folder));
    files = files_of(checkpoint);
  }
  // Open the device first: one-time costs of the process, such as a GPU's context, are not costs of
  // a model.
  DeviceOptions first = device_options(options.model);
  first.threads = 1;
  MORACLE_CHECK(open_device(options.model.device, first));
  LoadTime result;
  result.threads = options.model.threads > 0 ? options.model.threads : usable_threads();
  const Progress& progress = options.model.progress;
  std::vector<double> reads;
  Memory memory;
  const auto read_again = [&]() -> Status {
    if (options.cold) MORACLE_CHECK(forget(files));
    const Clock::time_point start = Clock::now();
    MORACLE_TRY(result.source_bytes, read(files, progress));
    reads.push_back(seconds_since(start));
    return {};
  };
  MORACLE_CHECK(read_again());
  if (!options.cold) {
    reads.clear();  // the first read may have come from the disk
    MORACLE_CHECK(read_again());
  }
  std::vector<Run> runs;
  const Clock::time_point begun = Clock::now();
  do {
    if (options.cold) MORACLE_CHECK(forget(files));
    Run& run = runs.emplace_back();
    const Clock::time_point start = Clock::now();
    MORACLE_TRY(const Checkpoint checkpoint, Checkpoint::open(folder));
    run.open_seconds = seconds_since(start);
    {
      MORACLE_TRY(const Model model, Model::load(checkpoint, options.model));
      run.seconds = seconds_since(start);
      result.weight_bytes = model.weight_bytes();
      result.choices = model.choices();
    }
    MORACLE_CHECK(read_again());
    MORACLE_CHECK(memory.measure(result.weight_bytes, options.model));
  } while (seconds_since(begun) < options.seconds);
  std::sort(runs.begin(), runs.end(),
            [](const Run& a, const Run& b) { return a.seconds < b.seconds; });
  result.runs = static_cast<int64_t>(runs.size());
  result.seconds = runs[runs.size() / 2].seconds;
  result.open_seconds = runs[runs.size() / 2].open_seconds;
  result.read_seconds = median(std::move(reads));
  if (!memory.touches.empty()) result.touch_seconds = median(std::move(memory.touches));
  if (!memory.copies.empty()) result.copy_bytes_per_second = median(std::move(memory.copies));
  return result;
}

}  // namespace moracle::bench
