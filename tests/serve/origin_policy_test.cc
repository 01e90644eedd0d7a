// Tests which Host and Origin headers the server accepts.
#include "serve/api/origin_policy.h"

#include <gtest/gtest.h>

namespace moracle::serve::origin_policy_test {
namespace {

TEST(OriginPolicy, LoopbackAcceptsOnlyItsOwnHostNames) {
  for (const char* listens_on : {"127.0.0.1", "localhost", "::1", "127.0.0.2"}) {
    const OriginPolicy policy(listens_on, "https://friend.example:8443");
    for (const char* host : {"localhost", "LocalHost:8000", "127.0.0.1", "127.0.0.1:1", "[::1]",
                             "[::1]:8000", "friend.example", "friend.example:80", ""})
      EXPECT_TRUE(policy.may_use(host)) << host;
    for (const char* host : {"evil.example", "evil.example:8000", "localhost.evil.example", "a",
                             "10.0.0.1", "127.0.0.1.evil.example", "[::2]", "[", "localhost@evil"})
      EXPECT_FALSE(policy.may_use(host)) << host;
  }
  EXPECT_TRUE(OriginPolicy("127.0.0.2", "").may_use("127.0.0.2:8000"));
  EXPECT_FALSE(OriginPolicy("127.0.0.1", "").may_use("friend.example"));
}

TEST(OriginPolicy, AcceptsOwnPageUnderUnambiguousNames) {
  const OriginPolicy loopback("127.0.0.1", ""), all("0.0.0.0", "");
  EXPECT_TRUE(loopback.may_send("http://127.0.0.1:8000", "127.0.0.1:8000"));
  EXPECT_TRUE(loopback.may_send("", "evil.example"));
  EXPECT_FALSE(loopback.may_send("http://evil.example", "evil.example"));
  EXPECT_FALSE(loopback.may_send("http://127.0.0.1:9000", "127.0.0.1:8000"));
  EXPECT_FALSE(loopback.may_send("null", "127.0.0.1"));
  EXPECT_TRUE(all.may_use("box.example:8000"));
  EXPECT_TRUE(all.may_send("http://10.0.0.1:8000", "10.0.0.1:8000"));
  EXPECT_TRUE(all.may_send("http://[fe80::1]:8000", "[fe80::1]:8000"));
  EXPECT_FALSE(all.may_send("http://evil.example:8000", "evil.example:8000"));
}

TEST(OriginPolicy, AcceptsAllowedOrigin) {
  const OriginPolicy policy("127.0.0.1", "https://friend.example");
  EXPECT_TRUE(policy.may_send("https://friend.example", "127.0.0.1"));
  EXPECT_FALSE(policy.may_send("http://friend.example", "127.0.0.1"));
  EXPECT_FALSE(policy.may_send("https://friend.example.evil", "127.0.0.1"));
}

TEST(OriginPolicy, RejectsInvalidAllowedOrigins) {
  for (const char* origin : {"http://a", "https://a.example:8000", "http://[::1]:80"})
    EXPECT_TRUE(check_origin(origin)) << origin;
  for (const char* origin : {"a.example", "*", "null", "ftp://a", "http://", "http://a/",
                             "http://a/b", "http://u@a", "http://a\r\nX: b"})
    EXPECT_FALSE(check_origin(origin)) << origin;
}

}  // namespace
}  // namespace moracle::serve::origin_policy_test
