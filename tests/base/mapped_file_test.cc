#include "base/mapped_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

namespace moracle {
namespace {

class MappedFileTest : public ::testing::Test {
 protected:
  MappedFileTest() { std::filesystem::create_directory(folder_); }
  ~MappedFileTest() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& content) {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }

  const std::string folder_ =
      ::testing::TempDir() + "moracle_mapped_file_" + std::to_string(::getpid());
};

std::string text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

// Bytes of files that this process has in memory, from /proc.
size_t resident_file_bytes() {
  std::ifstream statm("/proc/self/statm");
  size_t total = 0, resident = 0, shared = 0;
  statm >> total >> resident >> shared;
  return shared * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
}

TEST_F(MappedFileTest, ShowsTheContent) {
  const std::string path = write("a", std::string("ab\0c", 4));
  auto file = MappedFile::open(path);
  ASSERT_TRUE(file) << file.error().to_string();
  EXPECT_EQ(file->path(), path);
  EXPECT_EQ(text_of(*file), std::string("ab\0c", 4));
}

TEST_F(MappedFileTest, RefusesANamedPipeInsteadOfWaitingForIt) {
  const std::string path = folder_ + "/fifo";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  auto file = MappedFile::open(path);
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().kind, ErrorKind::kBadFile);
}

TEST_F(MappedFileTest, EmptyFileHasNoBytes) {
  auto file = MappedFile::open(write("empty", ""));
  ASSERT_TRUE(file) << file.error().to_string();
  EXPECT_TRUE(file->bytes().empty());
  MappedFile::release(file->bytes());
  MappedFile::prefetch(file->bytes());
}

TEST_F(MappedFileTest, MissingFileIsTheSystemsError) {
  auto file = MappedFile::open(folder_ + "/missing");
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().kind, ErrorKind::kIo);
  EXPECT_EQ(file.error().file, folder_ + "/missing");
  EXPECT_EQ(file.error().fact, std::strerror(ENOENT));
}

TEST_F(MappedFileTest, FolderAndDeviceAreNoFiles) {
  for (const std::string& path : {folder_, std::string("/dev/null")}) {
    auto file = MappedFile::open(path);
    ASSERT_FALSE(file) << path;
    EXPECT_EQ(file.error().kind, ErrorKind::kBadFile) << path;
    EXPECT_EQ(file.error().file, path);
  }
}

TEST_F(MappedFileTest, MovesKeepAddressAndContent) {
  auto one = MappedFile::open(write("one", "one"));
  auto two = MappedFile::open(write("two", "two"));
  ASSERT_TRUE(one && two);
  const std::byte* address = one->bytes().data();
  MappedFile moved(std::move(*one));
  EXPECT_EQ(moved.bytes().data(), address);
  EXPECT_EQ(text_of(moved), "one");
  EXPECT_TRUE(one->bytes().empty());
  moved = std::move(*two);
  EXPECT_EQ(text_of(moved), "two");
}

TEST_F(MappedFileTest, OutlivesTheName) {
  const std::string path = write("gone", "still here");
  auto file = MappedFile::open(path);
  ASSERT_TRUE(file);
  std::filesystem::remove(path);
  EXPECT_EQ(text_of(*file), "still here");
}

TEST_F(MappedFileTest, ReleasedPagesLeaveMemoryAndComeBack) {
  constexpr size_t kSize = size_t{32} << 20;
  std::string content(kSize, '\0');
  for (size_t i = 0; i < kSize; ++i) content[i] = static_cast<char>(i % 251);
  auto file = MappedFile::open(write("large", content));
  ASSERT_TRUE(file);
  MappedFile::prefetch(file->bytes());
  EXPECT_EQ(std::memcmp(file->bytes().data(), content.data(), kSize), 0);
  const size_t before = resident_file_bytes();
  // A part that starts and ends inside a page: those two pages stay.
  MappedFile::release(file->bytes().subspan(1, kSize - 2));
  const size_t after = resident_file_bytes();
  EXPECT_LT(after + kSize / 2, before);
  EXPECT_EQ(std::memcmp(file->bytes().data(), content.data(), kSize), 0);
}

TEST_F(MappedFileTest, AdviceOnLessThanAPageDoesNothing) {
  auto file = MappedFile::open(write("small", "some bytes"));
  ASSERT_TRUE(file);
  MappedFile::release(file->bytes().subspan(2, 3));
  MappedFile::release({});
  MappedFile::prefetch({});
  EXPECT_EQ(text_of(*file), "some bytes");
}

}  // namespace
}  // namespace moracle
