#include "checkpoint/gguf/gguf_file.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <tuple>
#include <vector>

#include "base/small_file.h"
#include "base/text.h"
#include "base/try.h"
#include "checkpoint/gguf/ggml_type.h"
#include "checkpoint/gguf/gguf_metadata.h"
#include "checkpoint/gguf/gguf_reader.h"

namespace moracle {
namespace gguf_file {
namespace {

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr uint32_t kDefaultAlignment = 32;

// The bytes [begin, end) of a tensor, counted from the first byte of the data.
struct Extent {
  uint64_t begin = 0, end = 0;
  const std::string* name = nullptr;
};

Status check_version(GgufReader& reader) {
  reader.set_place("header");
  MORACLE_TRY(const uint32_t magic, reader.number<uint32_t>("the magic"));
  if (magic != kMagic) {
    char bytes[4];
    std::memcpy(bytes, &magic, sizeof bytes);
    return reader.wrong("'GGUF' at byte 0", str("it is ", quoted_ascii({bytes, sizeof bytes}),
                                                "; this is no GGUF file"));
  }
  MORACLE_TRY(const uint32_t version, reader.number<uint32_t>("the version"));
  if (version == 2 || version == 3) return {};
  const bool swapped = version != 0 && (version & 0xffff) == 0;
  if (swapped) {
    return reader.unsupported("a little-endian file; convert the model for this machine",
                              "it is big-endian");
  }
  return reader.unsupported("version 2 or 3; convert the model again",
                            str("it has version ", version));
}

Result<uint64_t> read_alignment(GgufReader& reader, const nlohmann::json& metadata) {
  const auto found = metadata.find("general.alignment");
  if (found == metadata.end()) return uint64_t{kDefaultAlignment};
  if (found->is_number_unsigned()) {
    const auto alignment = found->get<uint64_t>();
    if (std::has_single_bit(alignment) && alignment <= 1 << 20) return alignment;
  }
  reader.set_place("metadata 'general.alignment'");
  return reader.wrong("a power of two up to 1048576", "it is " + found->dump());
}

// Reads one entry of the table. The tensor's `first` counts from the first byte of the data.
Result<StoredTensor> read_tensor(GgufReader& reader) {
  MORACLE_TRY(const uint32_t rank, reader.number<uint32_t>("the number of dimensions"));
  if (rank > GgufFile::kMaxRank)
    return reader.wrong(str("at most ", GgufFile::kMaxRank, " dimensions"), str("it has ", rank));
  StoredTensor tensor;
  tensor.view.shape.resize(rank);
  for (uint32_t i = 0; i < rank; ++i) {
    MORACLE_TRY(const uint64_t size, reader.number<uint64_t>("a dimension"));
    if (size > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
      return reader.wrong("dimensions below 2^63", str("one is ", size));
    tensor.view.shape[rank - 1 - i] = static_cast<int64_t>(size);
  }
  MORACLE_TRY(const uint32_t number, reader.number<uint32_t>("the type"));
  MORACLE_TRY(tensor.view.dtype, parse_ggml_type(number, reader.path(), reader.place()));
  MORACLE_TRY(tensor.first, reader.number<uint64_t>("the offset"));
  const Block unit = block(tensor.view.dtype);
  if (is_gguf_block(tensor.view.dtype) && (rank == 0 || tensor.view.shape.back() % unit.elements)) {
    return reader.wrong(
        str("rows of a multiple of ", unit.elements, " elements for ", name(tensor.view.dtype)),
        "it is " + to_string(tensor.view));
  }
  // Check the other dimensions even if one is zero: later code may multiply any of them.
  int64_t room = std::numeric_limits<int64_t>::max() / unit.bytes;
  for (const int64_t size : tensor.view.shape) {
    if (size > room)
      return reader.wrong("a tensor of less than 2^63 bytes", "it is " + to_string(tensor.view));
    if (size > 0) room /= size;
  }
  return tensor;
}

// Checks that the tensors, sorted by offset, cover all bytes of the data except padding.
Status check_cover(GgufReader& reader, std::vector<Extent>& extents, uint64_t alignment,
                   uint64_t data_bytes) {
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  uint64_t covered = 0;
  const std::string* previous = nullptr;
  const auto before = [&] {
    return previous == nullptr ? std::string("the start of the data") : tensor_place(*previous);
  };
  for (const Extent& extent : extents) {
    reader.set_place(tensor_place(*extent.name));
    if (extent.begin < covered) {
      return reader.wrong(
          "data that does not overlap another tensor's",
          str("its offset is ", extent.begin, ", inside ", before(), ", which ends at ", covered));
    }
    if (extent.begin - covered >= alignment) {
      return reader.wrong(
          "an offset without a gap before it",
          str("its offset is ", extent.begin, ", and ", before(), " ends at ", covered));
    }
    covered = extent.end;
    previous = extent.name;
  }
  if (data_bytes - covered < alignment) return {};
  reader.set_place("data");
  return reader.wrong("a tensor for every byte",
                      str("no tensor has the last ", data_bytes - covered, " bytes"));
}

Result<std::map<std::string, StoredTensor>> read_table(GgufReader& reader, uint64_t count,
                                                       uint64_t alignment) {
  std::map<std::string, StoredTensor> tensors;
  for (uint64_t i = 0; i < count; ++i) {
    reader.set_place(str("tensor ", i, " of the table"));
    MORACLE_TRY(std::string tensor_name, reader.text("a name", GgufFile::kMaxName));
    reader.set_place(tensor_place(tensor_name));
    if (tensor_name.empty()) return reader.wrong("a name", str("tensor ", i, " has none"));
    MORACLE_TRY(StoredTensor tensor, read_tensor(reader));
    if (!tensors.emplace(std::move(tensor_name), std::move(tensor)).second)
      return reader.wrong("each name once", "it occurs twice");
  }
  const uint64_t start = (reader.position() + alignment - 1) / alignment * alignment;
  const uint64_t data_bytes = reader.file_bytes() > start ? reader.file_bytes() - start : 0;
  std::vector<Extent> extents;
  for (auto& [tensor_name, tensor] : tensors) {
    reader.set_place(tensor_place(tensor_name));
    const uint64_t size = tensor.view.num_bytes();
    if (tensor.first % alignment != 0) {
      return reader.wrong(str("an offset that is a multiple of ", alignment),
                          str("it is ", tensor.first));
    }
    const bool in_file = start <= reader.file_bytes();  // check the start of empty tensors, too
    if (!in_file || tensor.first > data_bytes || size > data_bytes - tensor.first) {
      return reader.wrong(str(size, " bytes for ", to_string(tensor.view), " within the ",
                              data_bytes, " bytes of data"),
                          str("its offset is ", tensor.first, "; the file may be cut short"));
    }
    extents.push_back({tensor.first, tensor.first + size, &tensor_name});
    tensor.first += start;
  }
  MORACLE_CHECK(check_cover(reader, extents, alignment, data_bytes));
  return tensors;
}

Result<GgufHeader> read_header(GgufReader& reader) {
  MORACLE_CHECK(check_version(reader));
  MORACLE_TRY(const uint64_t num_tensors, reader.number<uint64_t>("the number of tensors"));
  MORACLE_TRY(const uint64_t num_pairs, reader.number<uint64_t>("the number of metadata pairs"));
  // Bytes of a tensor's shortest entry: a name with its length, the number of dimensions, a type
  // and an offset.
  constexpr uint64_t kLeastTensor = 8 + 1 + 4 + 4 + 8;
  const uint64_t most = std::min(GgufFile::kMaxTensors, reader.left() / kLeastTensor);
  if (num_tensors > most) {
    return reader.wrong(str("at most ", most, " tensors"),
                        str("it has ", num_tensors, "; the file may be cut short"));
  }
  GgufHeader header;
  MORACLE_TRY(header.metadata, read_gguf_metadata(reader, num_pairs));
  MORACLE_TRY(const uint64_t alignment, read_alignment(reader, header.metadata));
  MORACLE_TRY(header.tensors, read_table(reader, num_tensors, alignment));
  return header;
}

}  // namespace
}  // namespace gguf_file

Result<GgufHeader> GgufFile::parse(std::span<const std::byte> image, const std::string& path) {
  GgufReader reader(path, image.size(), [image](uint64_t first, std::span<std::byte> to) {
    std::memcpy(to.data(), image.data() + first, to.size());
    return Status();
  });
  return gguf_file::read_header(reader);
}

Result<GgufFile> GgufFile::open(const std::string& path) {
  MORACLE_TRY(File file, File::open(path));
  char start[64] = {};
  const std::span<char> known(start, std::min<uint64_t>(sizeof start, file.size()));
  MORACLE_CHECK(file.read(0, std::as_writable_bytes(known)));
  if (is_git_lfs_pointer({known.data(), known.size()})) return git_lfs_pointer(path);
  GgufReader reader(path, file.size(), [&file](uint64_t first, std::span<std::byte> to) {
    return file.read(first, to);
  });
  MORACLE_TRY(GgufHeader header, gguf_file::read_header(reader));
  return GgufFile{TensorFile(std::move(file), std::move(header.tensors)),
                  std::move(header.metadata)};
}

bool is_gguf(const std::string& path) {
  const Result<File> file = File::open(path);
  uint32_t magic = 0;
  if (!file || file->size() < sizeof magic) return false;
  const Status read = file->read(0, std::as_writable_bytes(std::span(&magic, 1)));
  return read && magic == gguf_file::kMagic;
}

}  // namespace moracle
