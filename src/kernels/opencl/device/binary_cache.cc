#include "kernels/opencl/device/binary_cache.h"

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <sstream>

#include "base/small_file.h"
#include "base/text.h"

namespace moracle::opencl {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMagic = "moracle opencl binary 1\n";

// FNV-1a, 64 bits (Fowler, Noll, Vo). It names files and detects damage, but does not protect
// against manipulation.
uint64_t hash_of(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  return hash;
}

std::string head_of(const std::string& key, std::string_view binary) {
  return str(kMagic, key, "\n", binary.size(), " ", hash_of(binary), "\n");
}

}  // namespace

BinaryCache::BinaryCache(const Queue& queue, const std::string& folder, const std::string& source,
                         const std::string& options)
    : queue_(queue), options_(options) {
  if (folder.empty()) return;
  const Api& cl = *queue.cl;
  key_ = str(text_of(cl, queue.device, CL_DEVICE_NAME), " | ",
             text_of(cl, queue.device, CL_DRIVER_VERSION), " | ",
             text_of(cl, queue.device, CL_DEVICE_VERSION), " | ", options, " | ", hash_of(source));
  std::ostringstream name;
  name << std::hex << hash_of(key_) << ".bin";
  path_ = fs::path(folder) / name.str();
}

cl_program BinaryCache::load() const {
  if (path_.empty()) return nullptr;
  constexpr size_t kMaxBytes = size_t{1} << 30;
  const Result<std::string> read = read_small_file(path_, kMaxBytes);
  if (!read) return nullptr;
  const std::string& whole = *read;
  const size_t start = str(kMagic, key_, "\n").size();
  const size_t end = whole.size() > start ? whole.find('\n', start) : whole.npos;
  if (end == whole.npos) return nullptr;
  const std::string_view binary = std::string_view(whole).substr(end + 1);
  if (!whole.starts_with(head_of(key_, binary))) return nullptr;
  const auto* data = reinterpret_cast<const unsigned char*>(binary.data());
  const size_t bytes = binary.size();
  cl_int code = CL_SUCCESS, status = CL_SUCCESS;
  const Api& cl = *queue_.cl;
  const cl_program program = cl.clCreateProgramWithBinary(queue_.context, 1, &queue_.device, &bytes,
                                                          &data, &status, &code);
  if (program == nullptr) return nullptr;
  if (code == CL_SUCCESS && status == CL_SUCCESS &&
      cl.clBuildProgram(program, 1, &queue_.device, options_.c_str(), nullptr, nullptr) ==
          CL_SUCCESS)
    return program;
  cl.clReleaseProgram(program);
  return nullptr;
}

void BinaryCache::keep(cl_program program) const {
  if (path_.empty()) return;
  const Api& cl = *queue_.cl;
  size_t bytes = 0;
  if (cl.clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof bytes, &bytes, nullptr) !=
          CL_SUCCESS ||
      bytes == 0)
    return;
  std::string binary(bytes, '\0');
  auto* data = reinterpret_cast<unsigned char*>(binary.data());
  if (cl.clGetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof data, &data, nullptr) != CL_SUCCESS)
    return;
  std::error_code ignored;
  fs::create_directories(fs::path(path_).parent_path(), ignored);
  static std::atomic<int> next = 0;
  const std::string fresh = str(path_, ".", ::getpid(), ".", next++);
  if (!is_replaceable(path_) || !write_new_file(fresh, str(head_of(key_, binary), binary))) return;
  fs::rename(fresh, path_, ignored);
  if (ignored) fs::remove(fresh, ignored);
}

}  // namespace moracle::opencl
