// libFuzzer: golden GGUF files with bytes changed, cut or doubled. Whole files are read: metadata,
// tokenizer, every matrix, a model that answers.
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "fuzz/bytes.h"
#include "fuzz/read_all.h"
#include "moracle/text.h"

namespace moracle::testing::gguf_model_fuzz {

namespace {

namespace fs = std::filesystem;

std::vector<std::string> golden_files() {
  constexpr uintmax_t kMostBytes = 100'000;  // larger ones are slow
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(MORACLE_GOLDEN_DIR "/gguf/models")) {
    if (entry.path().extension() != ".gguf" || entry.file_size() > kMostBytes) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    files.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  require(!files.empty());
  return files;
}

// Most edits change the header, where each byte matters.
size_t place(const std::string& file, Bytes& bytes) {
  const size_t range = bytes.byte() < 208 ? std::min<size_t>(file.size(), 16384) : file.size();
  const size_t at = static_cast<size_t>(bytes.byte()) << 16 |
                    static_cast<size_t>(bytes.byte()) << 8 | bytes.byte();
  return range == 0 ? 0 : at % range;
}

void edit(std::string& file, Bytes& bytes) {
  if (file.empty()) return;
  const size_t at = place(file, bytes);
  switch (bytes.below(5)) {
    case 0:
      file[at] = static_cast<char>(bytes.byte());
      return;
    case 1:
      file[at] = static_cast<char>(file[at] ^ (1 << bytes.below(8)));
      return;
    case 2: {  // a count, a length, an offset
      const int64_t number = bytes.size();
      std::memcpy(file.data() + at, &number, std::min(sizeof number, file.size() - at));
      return;
    }
    case 3:
      file.erase(at, bytes.below(64));
      return;
    default:
      file.insert(at, file.substr(at, bytes.below(64)));
  }
}

}  // namespace

int run(const uint8_t* data, size_t size) {
  static const std::vector<std::string> files = golden_files();
  static const std::string path =
      (fs::temp_directory_path() / ("gguf_model_fuzz_" + std::to_string(::getpid()) + ".gguf"))
          .string();
  Bytes bytes(std::span(data, size));
  std::string file = files[bytes.below(files.size())];
  while (!bytes.empty()) edit(file, bytes);
  std::ofstream(path, std::ios::binary) << file;
  passes(Tokenizer::open(path));
  read_all(path);
  fs::remove(path);
  return 0;
}

}  // namespace moracle::testing::gguf_model_fuzz
