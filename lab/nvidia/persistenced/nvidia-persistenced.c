/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stand-in for nvidia-persistenced: holds every GPU open and, unless told otherwise, has
 * persistence mode on. Options are those of NVIDIA's, of which it knows the ones that unit files
 * use. Source: github.com/NVIDIA/nvidia-persistenced, README and nvidia-persistenced.1.m4.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <grp.h>
#include <pwd.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <syslog.h>
#include <unistd.h>

#include "nv-version.h"
#include "nvidia-sim.h"

#define RUN_DIR	 "/run/nvidia-persistenced"
#define PID_FILE RUN_DIR "/nvidia-persistenced.pid"
#define SOCKET	 RUN_DIR "/socket"

static bool verbose;
static volatile sig_atomic_t stopped;

static void stop(int signal)
{
	(void)signal;
	stopped = 1;
}

static _Noreturn void fail(const char *text)
{
	syslog(LOG_ERR, "%s", text);
	fprintf(stderr,
		"nvidia-persistenced failed to initialize. Check syslog for more details.\n");
	exit(EXIT_FAILURE);
}

/* As NVIDIA's own: the module is loaded if nobody has done so. */
static void load_module(void)
{
	int status;
	pid_t child;

	if (!access("/dev/nvidiactl", F_OK))
		return;
	child = fork();
	if (child < 0)
		return;
	if (!child) {
		execl("/usr/bin/nvidia-modprobe", "nvidia-modprobe", (char *)NULL);
		_exit(127);
	}
	waitpid(child, &status, 0);
}

static unsigned int hold_gpus(int ctl, bool persistence)
{
	unsigned int n = 0;
	char path[32];

	for (unsigned int minor = 0; minor < NVSIM_MAX_GPUS; minor++) {
		snprintf(path, sizeof(path), "/dev/nvidia%u", minor);
		if (access(path, F_OK))
			continue;
		n++;
		if (!persistence)
			continue;
		if (open(path, O_RDWR | O_CLOEXEC) < 0 ||
		    ioctl(ctl, NVSIM_SET_PERSISTENCE,
			  &(struct nvsim_request){ .minor = minor, .value = 1 })) {
			syslog(LOG_ERR, "device %u - failed to set persistence mode: %s", minor,
			       strerror(errno));
			continue;
		}
		if (verbose)
			syslog(LOG_NOTICE, "device %u - persistence mode enabled.", minor);
	}
	return n;
}

static void release_gpus(int ctl)
{
	for (unsigned int minor = 0; minor < NVSIM_MAX_GPUS; minor++)
		ioctl(ctl, NVSIM_SET_PERSISTENCE,
		      &(struct nvsim_request){ .minor = minor, .value = 0 });
}

static void listen_on_socket(const struct passwd *user)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX, .sun_path = SOCKET };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	unlink(SOCKET);
	if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)) || listen(fd, 8))
		fail("Unable to create the socket " SOCKET);
	if (user && chown(SOCKET, user->pw_uid, user->pw_gid))
		fail("Unable to change the owner of " SOCKET);
	chmod(SOCKET, 0777);
}

static void write_pid(void)
{
	FILE *file = fopen(PID_FILE, "we");

	if (!file)
		fail("Unable to write " PID_FILE);
	fprintf(file, "%d\n", getpid());
	fclose(file);
}

static void usage(FILE *out)
{
	fprintf(out,
		"nvidia-persistenced [--user USER] [--persistence-mode|--no-persistence-mode] [--verbose] [--version]\n");
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "version", no_argument, NULL, 'v' },
		{ "help", no_argument, NULL, 'h' },
		{ "verbose", no_argument, NULL, 'V' },
		{ "user", required_argument, NULL, 'u' },
		{ "persistence-mode", no_argument, NULL, 'p' },
		{ "no-persistence-mode", no_argument, NULL, 'P' },
		{ NULL, 0, NULL, 0 },
	};
	bool persistence = true;
	const char *user_name = NULL;
	const struct passwd *user = NULL;
	int option, ctl;

	while ((option = getopt_long(argc, argv, "vhVu:", options, NULL)) != -1) {
		switch (option) {
		case 'v':
			printf("nvidia-persistenced:  version %s (simulated)\n", NV_VERSION_STRING);
			return EXIT_SUCCESS;
		case 'h': usage(stdout); return EXIT_SUCCESS;
		case 'V': verbose = true; break;
		case 'u': user_name = optarg; break;
		case 'p': persistence = true; break;
		case 'P': persistence = false; break;
		default: usage(stderr); return EXIT_FAILURE;
		}
	}

	openlog("nvidia-persistenced", LOG_PID, LOG_DAEMON);
	if (verbose)
		syslog(LOG_NOTICE, "Verbose syslog connection opened (simulated, version %s)",
		       NV_VERSION_STRING);
	if (user_name) {
		user = getpwnam(user_name);
		if (!user)
			fail("Failed to find the user given with --user");
	}
	load_module();
	ctl = open("/dev/nvidiactl", O_RDWR | O_CLOEXEC);
	if (ctl < 0)
		fail("Failed to query NVIDIA devices. Please ensure that the NVIDIA device files (/dev/nvidia*) exist, and that user 0 has read and write permissions for those files.");
	if (mkdir(RUN_DIR, 0755) && errno != EEXIST)
		fail("Unable to create " RUN_DIR);
	if (user && chown(RUN_DIR, user->pw_uid, user->pw_gid))
		fail("Unable to change the owner of " RUN_DIR);

	/* Before the fork: a caller that sees us succeed finds the GPUs held. */
	if (!hold_gpus(ctl, persistence))
		fail("No NVIDIA devices found.");
	listen_on_socket(user);
	if (daemon(0, 0))
		fail("Unable to become a daemon");
	write_pid();
	if (verbose)
		syslog(LOG_NOTICE, "Local RPC services initialized");
	/* --user only says who owns the socket here: switching persistence mode off at the end
	 * takes root. */
	signal(SIGTERM, stop);
	signal(SIGINT, stop);
	while (!stopped)
		pause();
	if (persistence)
		release_gpus(ctl);
	unlink(SOCKET);
	unlink(PID_FILE);
	return EXIT_SUCCESS;
}
