#include "checkpoint/safetensors/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/small_file.h"
#include "base/text.h"
#include "base/try.h"
#include "checkpoint/safetensors/safetensors_header.h"

namespace moracle {
namespace {

// Tensors are used with the byte order of the file.
static_assert(std::endian::native == std::endian::little);

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kStartBytes = 64;  // enough to know other kinds of files

// The header's length, checked against the file size. `start` is the beginning of the file.
Result<uint64_t> header_length(std::span<const std::byte> start, uint64_t file_bytes,
                               const std::string& path) {
  if (file_bytes < kLengthBytes) {
    return Error{ErrorKind::kBadFile, path, "byte 0", "8 bytes with the length of the header",
                 str("the file has ", file_bytes, " bytes")};
  }
  const std::string_view text(reinterpret_cast<const char*>(start.data()), start.size());
  if (is_git_lfs_pointer(text)) return git_lfs_pointer(path);
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    length |= std::to_integer<uint64_t>(start[i]) << (8 * i);
  }
  if (length > SafetensorsFile::kMaxHeaderBytes) {
    return Error{ErrorKind::kBadFile, path, "header length at byte 0",
                 str("at most ", SafetensorsFile::kMaxHeaderBytes),
                 str("it is ", length, "; this may not be a safetensors file")};
  }
  if (length > file_bytes - kLengthBytes) {
    return Error{ErrorKind::kBadFile, path, "header length at byte 0",
                 str("at most ", file_bytes - kLengthBytes, ", the bytes that follow it"),
                 str("it is ", length, "; the file may be cut short")};
  }
  return length;
}

// Bytes of shape × type, or -1 if the bits do not fit an int64_t. A zero dimension does not excuse
// the others: after this check any dimensions may be multiplied, also in [2^62, 4, 0].
int64_t count_bytes(const TensorView& view) {
  int64_t room = (std::numeric_limits<int64_t>::max() - 7) / bits(view.dtype);
  for (const int64_t size : view.shape) {
    if (size > room) return -1;
    if (size > 0) room /= size;
  }
  return static_cast<int64_t>(view.num_bytes());
}

Status check_size(const SafetensorsExtent& extent, uint64_t data_bytes, const std::string& path) {
  auto bad = [&](std::string need, std::string fact) {
    return Error{ErrorKind::kBadFile, path, tensor_place(*extent.name), std::move(need),
                 std::move(fact)};
  };
  auto offsets = [&] { return str("data_offsets are [", extent.begin, ", ", extent.end, "]"); };
  const TensorView& view = *extent.view;
  const int64_t size = count_bytes(view);
  if (size < 0) return bad("a shape of less than 2^63 bits", "it is " + to_string(view));
  if (extent.begin > extent.end) return bad("a begin that is not after the end", offsets());
  if (const uint64_t held = extent.end - extent.begin; held != static_cast<uint64_t>(size)) {
    return bad(str(size, " bytes for ", to_string(view)), str(offsets(), ", ", held, " bytes"));
  }
  if (extent.end > data_bytes) {
    return bad(str("data_offsets within the ", data_bytes, " bytes of data"),
               offsets() + "; the file may be cut short");
  }
  return {};
}

// Checks that the extents, sorted by offset, cover the data without overlap, gap or remainder. The
// format forbids gaps so that a file cannot hide data. A tensor without bytes may lie between two
// others but not inside one, as in the reference implementation.
Status check_cover(const std::vector<SafetensorsExtent>& extents, uint64_t data_start,
                   uint64_t data_bytes, const std::string& path) {
  uint64_t covered = 0;
  const std::string* previous = nullptr;
  auto before = [&] { return previous == nullptr ? "the header" : tensor_place(*previous); };
  auto hole = [&](uint64_t until) {
    return Error{ErrorKind::kBadFile, path, str("byte ", data_start + covered),
                 "a tensor for every byte of the data",
                 str("no tensor has bytes [", data_start + covered, ", ", data_start + until,
                     "), after ", before())};
  };
  for (const SafetensorsExtent& extent : extents) {
    if (extent.begin > covered) return hole(extent.begin);
    if (extent.begin < covered) {
      return Error{ErrorKind::kBadFile, path, tensor_place(*extent.name),
                   "data that does not overlap another tensor's",
                   str("it begins at byte ", data_start + extent.begin, ", inside ", before(),
                       ", which ends at byte ", data_start + covered)};
    }
    covered = extent.end;
    previous = extent.name;
  }
  if (covered < data_bytes) return hole(data_bytes);
  return {};
}

// The tensors of a file of `file_bytes` bytes with the header `text`.
Result<std::map<std::string, StoredTensor>> find_tensors(std::string_view text, uint64_t file_bytes,
                                                         const std::string& path) {
  MORACLE_TRY(SafetensorsHeader header, parse_safetensors_header(text, path));
  const uint64_t data_start = kLengthBytes + text.size(), data_bytes = file_bytes - data_start;
  for (const SafetensorsExtent& extent : header.extents)
    MORACLE_CHECK(check_size(extent, data_bytes, path));
  std::sort(header.extents.begin(), header.extents.end(), [](const auto& a, const auto& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  MORACLE_CHECK(check_cover(header.extents, data_start, data_bytes, path));
  std::map<std::string, StoredTensor> tensors;
  for (const SafetensorsExtent& extent : header.extents)
    tensors[*extent.name] = {std::move(*extent.view), data_start + extent.begin};
  return tensors;
}

}  // namespace

// Data need not be aligned: any header length, or an odd byte count in an earlier tensor, shifts
// all later tensors. Code that reads a view as wider elements must check its address or copy.
Result<std::map<std::string, TensorView>> SafetensorsFile::parse(std::span<const std::byte> image,
                                                                 const std::string& path) {
  MORACLE_TRY(const uint64_t length, header_length(image, image.size(), path));
  const auto* text = reinterpret_cast<const char*>(image.data()) + kLengthBytes;
  MORACLE_TRY(auto stored, find_tensors({text, length}, image.size(), path));
  std::map<std::string, TensorView> tensors;
  for (auto& [name, tensor] : stored) {
    tensor.view.data = image.data() + tensor.first;
    tensors[name] = std::move(tensor.view);
  }
  return tensors;
}

Result<TensorFile> SafetensorsFile::open(const std::string& path) {
  MORACLE_TRY(File file, File::open(path));
  std::array<std::byte, kStartBytes> bytes{};
  const auto start = std::span(bytes).first(std::min<uint64_t>(file.size(), kStartBytes));
  MORACLE_CHECK(file.read(0, start));
  MORACLE_TRY(const uint64_t length, header_length(start, file.size(), path));
  std::string text(length, '\0');
  MORACLE_CHECK(file.read(kLengthBytes, std::as_writable_bytes(std::span(text))));
  MORACLE_TRY(auto tensors, find_tensors(text, file.size(), path));
  return TensorFile(std::move(file), std::move(tensors));
}

}  // namespace moracle
