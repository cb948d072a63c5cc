// SPDX-License-Identifier: GPL-2.0
/*
 * Management datagrams: the port's counters, and just enough of a subnet administrator for IPoIB
 * to join its multicast groups, so that its interfaces get a carrier as long as the port is active.
 */
#include <linux/crc32.h>
#include <linux/rcupdate.h>
#include <linux/unaligned.h>
#include <rdma/ib_mad.h>
#include <rdma/ib_pma.h>
#include <rdma/ib_sa.h>
#include "simhw.h"

const char * const simhw_counter_names[SIMHW_NCOUNTERS] = {
	[SIMHW_SYMBOL_ERROR] = "symbol_error",
	[SIMHW_LINK_ERROR_RECOVERY] = "link_error_recovery",
	[SIMHW_LINK_DOWNED] = "link_downed",
	[SIMHW_PORT_RCV_ERRORS] = "port_rcv_errors",
	[SIMHW_LOCAL_LINK_INTEGRITY] = "local_link_integrity_errors",
};

/* ---- counters (performance management) ---- */

static u32 counter(const struct simhw_port *port, enum simhw_counter which, u32 max)
{
	return min(READ_ONCE(port->counters[which]), max);
}

static void fill_counters(const struct simhw_port *port, u8 *data)
{
	struct ib_pma_portcounters *pma = (void *)data;

	pma->symbol_error_counter = cpu_to_be16(counter(port, SIMHW_SYMBOL_ERROR, 0xffff));
	pma->link_error_recovery_counter = counter(port, SIMHW_LINK_ERROR_RECOVERY, 0xff);
	pma->link_downed_counter = counter(port, SIMHW_LINK_DOWNED, 0xff);
	pma->port_rcv_errors = cpu_to_be16(counter(port, SIMHW_PORT_RCV_ERRORS, 0xffff));
	pma->link_overrun_errors = counter(port, SIMHW_LOCAL_LINK_INTEGRITY, 0xf) << 4;
}

#define PMA_DATA	40	/* where the attribute begins in ib_mad.data */

int simhw_process_mad(struct ib_device *ib, int flags, u32 port_num, const struct ib_wc *in_wc,
		      const struct ib_grh *in_grh, const struct ib_mad *in, struct ib_mad *out,
		      size_t *out_size, u16 *out_pkey_index)
{
	const struct simhw_port *port = &to_simhw(ib)->dev->port;

	if (in->mad_hdr.mgmt_class != IB_MGMT_CLASS_PERF_MGMT ||
	    in->mad_hdr.method != IB_MGMT_METHOD_GET)
		return IB_MAD_RESULT_SUCCESS;
	memset(out, 0, sizeof(*out));
	out->mad_hdr = in->mad_hdr;
	out->mad_hdr.method = IB_MGMT_METHOD_GET_RESP;
	switch (in->mad_hdr.attr_id) {
	case IB_PMA_CLASS_PORT_INFO: {
		struct ib_class_port_info *info = (void *)(out->data + PMA_DATA);

		info->base_version = 1;
		info->class_version = 1;
		info->capability_mask = IB_PMA_CLASS_CAP_EXT_WIDTH;
		break;
	}
	case IB_PMA_PORT_COUNTERS:
		fill_counters(port, out->data + PMA_DATA);
		break;
	case IB_PMA_PORT_COUNTERS_EXT:
		break;		/* of data and packets there are none */
	default:
		out->mad_hdr.status = cpu_to_be16(IB_MGMT_MAD_STATUS_UNSUPPORTED_METHOD_ATTRIB);
	}
	return IB_MAD_RESULT_SUCCESS | IB_MAD_RESULT_REPLY;
}

/* ---- subnet administrator ---- */

#define SA_NO_RECORDS	cpu_to_be16(3 << 8)
#define SELECT_EXACTLY	0x80

/* Offsets in MCMemberRecord and PathRecord. Source: InfiniBand specification 1.x, 15.2.5.17, .16 */
#define MC_QKEY		32
#define MC_MLID		36
#define MC_MTU		38
#define MC_PKEY		40
#define MC_RATE		42
#define MC_LIFE		43
#define PATH_DGID	8
#define PATH_SGID	24
#define PATH_DLID	40
#define PATH_SLID	42
#define PATH_NUMB	49
#define PATH_PKEY	50
#define PATH_MTU	54
#define PATH_RATE	55
#define PATH_LIFE	56

static void join_group(struct ib_sa_mad *sa)
{
	u8 *record = sa->data;

	put_unaligned_be16(0xc000 | (crc32(~0, record, 16) & 0x3ff), record + MC_MLID);
	if (!get_unaligned_be32(record + MC_QKEY))
		put_unaligned_be32(0x0b1b, record + MC_QKEY);
	record[MC_MTU] = SELECT_EXACTLY | IB_MTU_2048;
	record[MC_RATE] = SELECT_EXACTLY | IB_RATE_10_GBPS;
	record[MC_LIFE] = SELECT_EXACTLY | 18;
	put_unaligned_be16(IB_DEFAULT_PKEY_FULL, record + MC_PKEY);
}

/* Of other machines' ports it knows nothing. */
static u16 lid_of(__be64 guid)
{
	u16 lid = 0;
	int i;

	rcu_read_lock();	/* see simhw_pci_remove_all() */
	for (i = 0; i < SIMHW_MAX_DEVS; i++) {
		struct simhw_dev *dev = READ_ONCE(simhw_devs[i]);

		if (dev && dev->model->kind == SIMHW_HCA && dev->port.port_guid == guid)
			lid = dev->port.lid;
	}
	rcu_read_unlock();
	return lid;
}

static void find_path(struct ib_sa_mad *sa)
{
	u8 *record = sa->data;
	__be64 to, from;
	u16 dlid, slid;

	memcpy(&to, record + PATH_DGID + 8, sizeof(to));
	memcpy(&from, record + PATH_SGID + 8, sizeof(from));
	dlid = lid_of(to);
	slid = lid_of(from);
	if (!dlid || !slid) {
		sa->mad_hdr.status = SA_NO_RECORDS;
		return;
	}
	put_unaligned_be16(dlid, record + PATH_DLID);
	put_unaligned_be16(slid, record + PATH_SLID);
	put_unaligned_be16(IB_DEFAULT_PKEY_FULL, record + PATH_PKEY);
	record[PATH_NUMB] = 0x81;	/* one, reversible */
	record[PATH_MTU] = SELECT_EXACTLY | IB_MTU_4096;
	record[PATH_RATE] = SELECT_EXACTLY | IB_RATE_100_GBPS;
	record[PATH_LIFE] = SELECT_EXACTLY | 18;
}

/* False: nobody answers, as without a subnet manager or for another class. Both MADs are 256 bytes. */
bool simhw_sa_answer(struct simhw_ibdev *sib, const void *request, void *reply)
{
	struct ib_sa_mad *sa = reply;

	memcpy(sa, request, sizeof(*sa));
	if (simhw_port_state(sib) != IB_PORT_ACTIVE ||
	    sa->mad_hdr.mgmt_class != IB_MGMT_CLASS_SUBN_ADM ||
	    sa->mad_hdr.method & IB_MGMT_METHOD_RESP)
		return false;
	sa->mad_hdr.method = sa->mad_hdr.method == IB_SA_METHOD_DELETE ? IB_SA_METHOD_DELETE_RESP :
		IB_MGMT_METHOD_GET_RESP;
	sa->mad_hdr.status = 0;
	switch (be16_to_cpu(sa->mad_hdr.attr_id)) {
	case IB_SA_ATTR_CLASS_PORTINFO: {
		struct ib_class_port_info *info = (void *)sa->data;

		memset(info, 0, sizeof(*info));
		info->base_version = 1;
		info->class_version = 2;
		info->cap_mask2_resp_time = cpu_to_be32(18);
		break;
	}
	case IB_SA_ATTR_MC_MEMBER_REC:
		join_group(sa);
		break;
	case IB_SA_ATTR_PATH_REC:
		find_path(sa);
		break;
	default:
		sa->mad_hdr.status = cpu_to_be16(IB_MGMT_MAD_STATUS_UNSUPPORTED_METHOD_ATTRIB);
	}
	return true;
}
