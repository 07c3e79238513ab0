`timescale 1ns/1ps

module axi4lite_to_pcie_cfg_bridge #(
    parameter ADDR_WIDTH = 8,
    parameter DATA_WIDTH = 32
) (
    input  logic                    aclk,
    input  logic                    aresetn,

    // AXI4-Lite, writes
    input  logic [ADDR_WIDTH-1:0]   awaddr,
    input  logic                    awvalid,
    output logic                    awready,
    input  logic [DATA_WIDTH-1:0]   wdata,
    input  logic [DATA_WIDTH/8-1:0] wstrb,
    input  logic                    wvalid,
    output logic                    wready,
    output logic [1:0]              bresp,
    output logic                    bvalid,
    input  logic                    bready,

    // AXI4-Lite, reads
    input  logic [ADDR_WIDTH-1:0]   araddr,
    input  logic                    arvalid,
    output logic                    arready,
    output logic [DATA_WIDTH-1:0]   rdata,
    output logic                    rvalid,
    input  logic                    rready,
    output logic [1:0]              rresp,

    // PCIe configuration space
    output logic [ADDR_WIDTH-1:0]   pcie_cfg_addr,
    output logic [DATA_WIDTH-1:0]   pcie_cfg_wdata,
    output logic                    pcie_cfg_wr_en,
    input  logic [DATA_WIDTH-1:0]   pcie_cfg_rdata,
    output logic                    pcie_cfg_rd_en
);
    localparam [1:0] OKAY = 2'b00;
    localparam [2:0] IDLE = 0, ADDR_CAPTURE = 1, DATA_CAPTURE = 2, PCIE_WRITE = 3, PCIE_READ = 4, SEND_RESPONSE = 5;

    logic [2:0]              state;
    logic                    reading;
    logic [DATA_WIDTH-1:0]   wdata_reg;
    logic [DATA_WIDTH/8-1:0] wstrb_reg;

    // Nothing in the configuration space refuses an access.
    assign bresp = OKAY;
    assign rresp = OKAY;

    // One transaction at a time goes through the states; a write that waits goes before a read.
    always_ff @(posedge aclk or negedge aresetn)
        if (!aresetn) begin
            state <= IDLE;
            {reading, wdata_reg, wstrb_reg} <= '0;
            {awready, wready, bvalid} <= '0;
            {arready, rdata, rvalid} <= '0;
            {pcie_cfg_addr, pcie_cfg_wdata, pcie_cfg_wr_en, pcie_cfg_rd_en} <= '0;
        end else
            case (state)
                IDLE:
                    if ((awvalid && wvalid) || arvalid) begin
                        reading <= !(awvalid && wvalid);
                        state <= ADDR_CAPTURE;
                    end

                // The address stays on pcie_cfg_addr until the next transaction: a read has its data there, and a
                // write the bytes that it leaves as they are.
                ADDR_CAPTURE: begin
                    pcie_cfg_addr <= reading ? araddr : awaddr;
                    pcie_cfg_rd_en <= reading;
                    arready <= reading;
                    state <= reading ? PCIE_READ : DATA_CAPTURE;
                end

                // Address and data are accepted at once, and for one cycle: a second one would take the next address.
                DATA_CAPTURE: begin
                    wdata_reg <= wdata;
                    wstrb_reg <= wstrb;
                    {awready, wready} <= '1;
                    state <= PCIE_WRITE;
                end

                PCIE_WRITE: begin
                    {awready, wready} <= '0;
                    for (int i = 0; i < DATA_WIDTH / 8; i++)
                        pcie_cfg_wdata[8*i+:8] <= wstrb_reg[i] ? wdata_reg[8*i+:8] : pcie_cfg_rdata[8*i+:8];
                    pcie_cfg_wr_en <= 1'b1;
                    state <= SEND_RESPONSE;
                end

                // Two cycles: the configuration space sees the enable in the first and has its data in the second.
                PCIE_READ: begin
                    {arready, pcie_cfg_rd_en} <= '0;
                    if (!pcie_cfg_rd_en) begin
                        rdata <= pcie_cfg_rdata;
                        state <= SEND_RESPONSE;
                    end
                end

                // The response is held until the master takes it.
                SEND_RESPONSE: begin
                    pcie_cfg_wr_en <= 1'b0;
                    bvalid <= !reading && !(bvalid && bready);
                    rvalid <= reading && !(rvalid && rready);
                    if ((bvalid && bready) || (rvalid && rready)) state <= IDLE;
                end

                default: state <= IDLE;
            endcase
endmodule
