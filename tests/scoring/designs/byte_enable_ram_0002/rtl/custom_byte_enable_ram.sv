module custom_byte_enable_ram #(
    parameter XLEN = 32,
    parameter LINES = 8192,
    localparam ADDR_WIDTH = $clog2(LINES)
) (
    input  logic                  clk,
    input  logic [ADDR_WIDTH-1:0] addr_a,
    input  logic                  en_a,
    input  logic [XLEN/8-1:0]     be_a,
    input  logic [XLEN-1:0]       data_in_a,
    output logic [XLEN-1:0]       data_out_a,
    input  logic [ADDR_WIDTH-1:0] addr_b,
    input  logic                  en_b,
    input  logic [XLEN/8-1:0]     be_b,
    input  logic [XLEN-1:0]       data_in_b,
    output logic [XLEN-1:0]       data_out_b
);
    logic [XLEN-1:0]       ram [0:LINES-1];
    logic [ADDR_WIDTH-1:0] addr_a_reg, addr_b_reg;
    logic [XLEN/8-1:0]     be_a_reg, be_b_reg;
    logic [XLEN-1:0]       data_a_reg, data_b_reg;
    integer                i;

    initial for (i = 0; i < LINES; i = i + 1) ram[i] = 0;

    always_ff @(posedge clk) begin
        {addr_a_reg, data_a_reg, be_a_reg} <= {addr_a, data_in_a, be_a & {XLEN/8{en_a}}};
        {addr_b_reg, data_b_reg, be_b_reg} <= {addr_b, data_in_b, be_b & {XLEN/8{en_b}}};
    end

    // Port A comes last, so that its bytes win.
    always @(posedge clk) begin
        for (i = 0; i < XLEN / 8; i = i + 1) begin
            if (be_b_reg[i]) ram[addr_b_reg][8*i +: 8] <= data_b_reg[8*i +: 8];
            if (be_a_reg[i]) ram[addr_a_reg][8*i +: 8] <= data_a_reg[8*i +: 8];
        end
        data_out_a <= ram[addr_a_reg];
        data_out_b <= ram[addr_b_reg];
    end
endmodule
