// Compiles the non-template code of Boost.Asio and Boost.Beast.
#ifdef MORACLE_WITH_HTTP
#include <boost/asio/impl/src.hpp>
#include <boost/beast/src.hpp>
#endif
