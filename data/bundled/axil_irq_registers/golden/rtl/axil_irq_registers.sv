module axil_irq_registers (
    input  logic        aclk,
    input  logic        aresetn,

    input  logic [7:0]  awaddr,
    input  logic        awvalid,
    output logic        awready,
    input  logic [31:0] wdata,
    input  logic [3:0]  wstrb,
    input  logic        wvalid,
    output logic        wready,
    output logic [1:0]  bresp,
    output logic        bvalid,
    input  logic        bready,

    input  logic [7:0]  araddr,
    input  logic        arvalid,
    output logic        arready,
    output logic [31:0] rdata,
    output logic [1:0]  rresp,
    output logic        rvalid,
    input  logic        rready,

    input  logic [7:0]  events,
    output logic [7:0]  ctrl,
    output logic        irq
);
    localparam logic [31:0] ID     = 32'h52544C31;
    localparam logic [1:0]  OKAY   = 2'b00;
    localparam logic [1:0]  SLVERR = 2'b10;

    localparam logic [5:0] A_ID = 6'd0, A_CTRL = 6'd1, A_SCRATCH = 6'd2, A_STATUS = 6'd3, A_ENABLE = 6'd4, A_WRITES = 6'd5;

    logic [31:0] scratch;
    logic [7:0]  irq_status, irq_enable;
    logic [15:0] writes;

    assign irq = |(irq_status & irq_enable);

    // Write side: one address and one data word are held until both are there and the response channel is free.
    logic        aw_held, w_held;
    logic [5:0]  aw_word;
    logic [31:0] w_data;
    logic [3:0]  w_strb;
    logic        commit, writable;
    logic [31:0] mask;
    logic [7:0]  clear;

    assign awready  = !aw_held;
    assign wready   = !w_held;
    assign commit   = aw_held && w_held && !bvalid;
    assign writable = (aw_word == A_CTRL) || (aw_word == A_SCRATCH) || (aw_word == A_STATUS) || (aw_word == A_ENABLE);
    assign mask     = {{8{w_strb[3]}}, {8{w_strb[2]}}, {8{w_strb[1]}}, {8{w_strb[0]}}};
    assign clear    = (commit && aw_word == A_STATUS) ? (w_data[7:0] & mask[7:0]) : 8'h00;

    always_ff @(posedge aclk) begin
        if (!aresetn) begin
            aw_held    <= 1'b0;
            w_held     <= 1'b0;
            aw_word    <= 6'd0;
            w_data     <= 32'd0;
            w_strb     <= 4'd0;
            bvalid     <= 1'b0;
            bresp      <= OKAY;
            ctrl       <= 8'h00;
            scratch    <= 32'd0;
            irq_status <= 8'h00;
            irq_enable <= 8'h00;
            writes     <= 16'd0;
        end else begin
            irq_status <= (irq_status & ~clear) | events;
            if (awvalid && awready) begin
                aw_held <= 1'b1;
                aw_word <= awaddr[7:2];
            end
            if (wvalid && wready) begin
                w_held <= 1'b1;
                w_data <= wdata;
                w_strb <= wstrb;
            end
            if (bvalid && bready) bvalid <= 1'b0;
            if (commit) begin
                aw_held <= 1'b0;
                w_held  <= 1'b0;
                bvalid  <= 1'b1;
                bresp   <= writable ? OKAY : SLVERR;
                if (writable) writes <= writes + 16'd1;
                case (aw_word)
                    A_CTRL:    ctrl       <= (ctrl & ~mask[7:0]) | (w_data[7:0] & mask[7:0]);
                    A_SCRATCH: scratch    <= (scratch & ~mask) | (w_data & mask);
                    A_ENABLE:  irq_enable <= (irq_enable & ~mask[7:0]) | (w_data[7:0] & mask[7:0]);
                    default:   ;
                endcase
            end
        end
    end

    // Read side: the answer is registered at the edge of the address transfer.
    assign arready = !rvalid;

    always_ff @(posedge aclk) begin
        if (!aresetn) begin
            rvalid <= 1'b0;
            rresp  <= OKAY;
            rdata  <= 32'd0;
        end else if (arvalid && arready) begin
            rvalid <= 1'b1;
            rresp  <= OKAY;
            case (araddr[7:2])
                A_ID:      rdata <= ID;
                A_CTRL:    rdata <= {24'd0, ctrl};
                A_SCRATCH: rdata <= scratch;
                A_STATUS:  rdata <= {24'd0, irq_status};
                A_ENABLE:  rdata <= {24'd0, irq_enable};
                A_WRITES:  rdata <= {16'd0, writes};
                default: begin
                    rdata <= 32'd0;
                    rresp <= SLVERR;
                end
            endcase
        end else if (rready) begin
            rvalid <= 1'b0;
        end
    end
endmodule
