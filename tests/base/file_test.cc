#include "base/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <string>

#include "support/temporary_folder.h"

namespace moracle::file_test {
namespace {

using ::testing::HasSubstr;

class FileTest : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& content) const {
    return temporary_.write(name, content);
  }

  const testing::TemporaryFolder temporary_;
  const std::string& folder_ = temporary_.path();
};

Result<std::string> text_of(const File& file, uint64_t first, size_t count) {
  std::string text(count, '?');
  const Status read = file.read(first, std::as_writable_bytes(std::span(text)));
  if (!read) return read.error();
  return text;
}

TEST_F(FileTest, ReadsAnyRange) {
  const std::string path = write("a", std::string("ab\0c", 4));
  const auto file = File::open(path);
  ASSERT_TRUE(file) << file.error().to_string();
  EXPECT_EQ(file->path(), path);
  EXPECT_EQ(file->size(), 4u);
  EXPECT_EQ(*text_of(*file, 0, 4), std::string("ab\0c", 4));
  EXPECT_EQ(*text_of(*file, 3, 1), "c");
  EXPECT_EQ(*text_of(*file, 4, 0), "");
}

TEST_F(FileTest, RejectsNamedPipeWithoutWaiting) {
  const std::string path = folder_ + "/fifo";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const auto file = File::open(path);
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().kind, ErrorKind::kBadFile);
}

TEST_F(FileTest, EmptyFileHasNoBytes) {
  const std::string path = write("empty", "");
  const auto file = File::open(path);
  ASSERT_TRUE(file) << file.error().to_string();
  EXPECT_EQ(file->size(), 0u);
  EXPECT_FALSE(text_of(*file, 0, 1));
}

TEST_F(FileTest, MissingFileGivesSystemError) {
  const auto file = File::open(folder_ + "/missing");
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().kind, ErrorKind::kIo);
  EXPECT_EQ(file.error().file, folder_ + "/missing");
  EXPECT_EQ(file.error().fact, std::strerror(ENOENT));
}

TEST_F(FileTest, RejectsFolderAndDevice) {
  for (const std::string& path : {folder_, std::string("/dev/null")}) {
    const auto file = File::open(path);
    ASSERT_FALSE(file) << path;
    EXPECT_EQ(file.error().kind, ErrorKind::kBadFile) << path;
    EXPECT_EQ(file.error().file, path);
  }
}

TEST_F(FileTest, MoveKeepsContent) {
  auto one = File::open(write("one", "one")), two = File::open(write("two", "two"));
  ASSERT_TRUE(one && two);
  File moved(std::move(*one));
  EXPECT_EQ(*text_of(moved, 0, 3), "one");
  moved = std::move(*two);
  EXPECT_EQ(*text_of(moved, 0, 3), "two");
}

TEST_F(FileTest, StaysReadableAfterUnlink) {
  const std::string path = write("gone", "still here");
  const auto file = File::open(path);
  ASSERT_TRUE(file);
  std::filesystem::remove(path);
  EXPECT_EQ(*text_of(*file, 0, 10), "still here");
}

TEST_F(FileTest, TruncationWhileOpenIsReportedWithOffset) {
  const std::string path = write("cut", std::string(10'000, 'x'));
  const auto file = File::open(path);
  ASSERT_TRUE(file);
  std::filesystem::resize_file(path, 5000);
  EXPECT_EQ(*text_of(*file, 4000, 1000), std::string(1000, 'x'));
  const auto read = text_of(*file, 4000, 1001);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().kind, ErrorKind::kBadFile);
  EXPECT_EQ(read.error().file, path);
  EXPECT_EQ(read.error().place, "byte 5000");
  EXPECT_THAT(read.error().to_string(), HasSubstr("needs 10000 bytes, as when it was opened"));
  EXPECT_THAT(read.error().to_string(), HasSubstr("it now has at most 5000"));
}

}  // namespace
}  // namespace moracle::file_test
