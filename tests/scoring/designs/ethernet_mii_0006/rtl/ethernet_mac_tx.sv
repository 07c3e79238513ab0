module ethernet_mac_tx (
    input  logic        clk_in,
    input  logic        rst_in,

    input  logic        cfg_wr_in,
    input  logic [31:0] cfg_addr_in,
    input  logic [31:0] cfg_data_wr_in,
    output logic [31:0] cfg_data_rd_out,

    output logic        interrupt_out,

    output logic        axis_tvalid_out,
    output logic [31:0] axis_tdata_out,
    output logic [3:0]  axis_tstrb_out,
    output logic        axis_tlast_out,
    input  logic        axis_tready_in
);
    localparam ADDR_W = 10;
    localparam MIN_LENGTH = 64;
    localparam [15:0] TX_LENGTH = 16'h07F4, IRQ_ENABLE = 16'h07F8, TX_CONTROL = 16'h07FC;

    typedef enum logic [1:0] {IDLE, READ, PAUSE, DONE} state_t;

    state_t            state;
    logic [15:0]       length;    // as programmed
    logic [15:0]       left;      // bytes still to be sent, padding included
    logic [15:0]       data_left; // those of them that are in memory
    logic [ADDR_W-1:0] address;
    logic              irq_enable, program_mode, busy;

    // Configuration
    wire [15:0] cfg_addr = cfg_addr_in[15:0];
    wire is_register = cfg_addr == TX_LENGTH || cfg_addr == IRQ_ENABLE || cfg_addr == TX_CONTROL;
    wire wr_memory = cfg_wr_in && cfg_addr_in < 32'h1000 && !is_register;
    wire wr_register = cfg_wr_in && is_register;

    logic        rd_register;
    logic [31:0] register_q, memory_q, frame_word;

    assign cfg_data_rd_out = rd_register ? register_q : memory_q;

    // A register is read with the memory's latency.
    always_ff @(posedge clk_in or posedge rst_in)
        if (rst_in) {rd_register, register_q} <= 0;
        else if (!cfg_wr_in) begin
            rd_register <= is_register;
            case (cfg_addr)
                TX_LENGTH:  register_q <= length;
                IRQ_ENABLE: register_q <= irq_enable;
                default:    register_q <= {program_mode, busy};
            endcase
        end

    // Transmission
    wire load = state == READ && (!axis_tvalid_out || axis_tready_in);
    wire last = left <= 4;
    wire [ADDR_W-1:0] next_address = state == IDLE ? 0 : address + load;

    ethernet_dp_ram #(.WIDTH(32), .ADDR_W(ADDR_W)) u_ram (
        .clk0_in(clk_in),
        .addr0_in(cfg_addr_in[ADDR_W+1:2]), .data0_in(cfg_data_wr_in), .wr0_in(wr_memory), .data0_out(memory_q),
        .addr1_in(next_address), .data1_in(32'h0), .wr1_in(1'b0), .data1_out(frame_word)
    );

    // What lies behind the frame in memory may be left from a longer one: padding has to be made, not read.
    function automatic [3:0] first_bytes(input [15:0] count);
        first_bytes = count >= 4 ? 4'hF : (1 << count) - 1;
    endfunction

    wire [3:0] in_memory = first_bytes(data_left);

    always_ff @(posedge clk_in or posedge rst_in)
        if (rst_in) begin
            state <= IDLE;
            {length, left, data_left, address, irq_enable, program_mode, busy, interrupt_out} <= 0;
            {axis_tvalid_out, axis_tdata_out, axis_tstrb_out, axis_tlast_out} <= 0;
        end else begin
            interrupt_out <= 0;
            address <= next_address;

            case (state)
                IDLE: begin
                    left <= length < MIN_LENGTH ? MIN_LENGTH : length;
                    data_left <= length;
                    if (program_mode) state <= DONE;
                    else if (busy) state <= READ;
                end
                READ:
                    if (load) begin
                        axis_tvalid_out <= 1;
                        for (int i = 0; i < 4; i++) axis_tdata_out[8*i +: 8] <= in_memory[i] ? frame_word[8*i +: 8] : 0;
                        axis_tstrb_out <= first_bytes(left);
                        axis_tlast_out <= last;
                        left <= last ? 0 : left - 4;
                        data_left <= data_left < 4 ? 0 : data_left - 4;
                        if (last) state <= PAUSE;
                    end else state <= PAUSE;
                PAUSE:
                    if (axis_tready_in) begin
                        {axis_tvalid_out, axis_tdata_out, axis_tstrb_out, axis_tlast_out} <= 0;
                        if (left == 0) state <= DONE;
                        else state <= READ;
                    end
                DONE: begin
                    {program_mode, busy} <= 0;
                    interrupt_out <= irq_enable;
                    state <= IDLE;
                end
            endcase

            if (wr_register && !busy && !program_mode)
                case (cfg_addr)
                    TX_LENGTH:  length <= cfg_data_wr_in[15:0];
                    IRQ_ENABLE: irq_enable <= cfg_data_wr_in[0];
                    default:    {program_mode, busy} <= cfg_data_wr_in[1:0];
                endcase
        end
endmodule
