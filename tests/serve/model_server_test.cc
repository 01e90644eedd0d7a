// The public server class: it loads, listens, answers and refuses.
#include "moracle/serve.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "paths.h"
#include "serve/http/http.h"
#include "support/must.h"

namespace moracle::model_server_test {
namespace {

using ::testing::HasSubstr;
using testing::must;

std::string reply_of(uint16_t port, const std::string& path) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  std::string reply;
  if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) {
    const std::string request =
        "GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    char bytes[4096];
    if (::write(fd, request.data(), request.size()) == static_cast<ssize_t>(request.size()))
      for (ssize_t count; (count = ::read(fd, bytes, sizeof bytes)) > 0;)
        reply.append(bytes, count);
  }
  ::close(fd);
  return reply;
}

TEST(ModelServer, AnswersUnderItsNameUntilItEnds) {
  if (const Status there = serve::HttpServer::available(); !there)
    GTEST_SKIP() << there.error().to_string();
  const Checkpoint checkpoint =
      must(Checkpoint::open(testing::models_dir() + "/qwen3moe-gptq-int4-g128"));
  ModelOptions model;
  model.threads = 1;
  EXPECT_THAT(ModelServer::start(checkpoint, model, {.port = 0}).error().to_string(),
              HasSubstr("cache_bytes: needs memory for keys and values"));
  model.cache_bytes = int64_t{64} << 20;
  ServeOptions options;
  options.port = 0;
  options.name = "small";
  options.max_running = 4;
  ModelServer server = must(ModelServer::start(checkpoint, model, options));
  ASSERT_NE(server.port(), 0);
  EXPECT_THAT(reply_of(server.port(), "/health"), HasSubstr("200"));
  EXPECT_THAT(reply_of(server.port(), "/v1/models"), HasSubstr("\"small\""));
  EXPECT_FALSE(server.failure());
  options.port = server.port();
  EXPECT_EQ(ModelServer::start(checkpoint, model, options).error().kind, ErrorKind::kIo);
  EXPECT_TRUE(server.drain(10));
  EXPECT_THAT(reply_of(server.port(), "/health"), HasSubstr("503"));
}

}  // namespace
}  // namespace moracle::model_server_test
